"""The tokens of a rollout to walk through: one is always looked at, by cursor or by mouse."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Leave, MouseMove, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from whet.viewer.tokens import Token, TokenView
from whet.viewer.widgets.lines import STYLES, fitted, plain
from whet.viewer.widgets.token_lines import Colouring, TokenLine, colour, token_lines

UNLIKELY = -2.302585  # the logarithm of a tenth


class TokenText(ScrollView, can_focus=True, inherit_bindings=False):
    """Tokens in lines. `Looked` tells which one is looked at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "token before", show=False),
        Binding("right", "move(1)", "next token", show=False),
        Binding("up,k", "line(-1)", "up", show=False),
        Binding("down,j", "line(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown,space", "page(1)", "page down", show=False),
        Binding("home", "go(0)", "first token", show=False),
        Binding("end", "go(-1)", "last token", show=False),
    ]
    DEFAULT_CSS = """
    TokenText { height: 1fr; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
        scrollbar-background: $background; scrollbar-color: $primary; }
    """

    class Looked(Message):
        """Another token is looked at; -1 where there is none."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def __init__(self) -> None:
        super().__init__()
        self.view = TokenView([], None)
        self.tokens: list[Token] = []
        self.lines: list[TokenLine] = []
        self.cursor = 0
        self.colouring: Colouring = "logprob"
        self._line_of: list[int] = []  # by token: the line it begins in
        self._hovered = -1

    def show(self, view: TokenView) -> None:
        """The tokens of another rollout; the first sampled one is looked at."""
        self.view, self.tokens = view, list(view.tokens)
        self._hovered = -1
        self.cursor = next((place for place, token in enumerate(self.tokens) if token.sampled), 0)
        self._lay_out()
        self.scroll_to(y=0, animate=False)
        self._look()

    def colour_by(self, colouring: Colouring) -> None:
        self.colouring = colouring
        self.refresh()

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width
        self.lines = token_lines(self.view, width) if width > 0 else []
        self._line_of = [0] * len(self.tokens)
        for row in range(len(self.lines) - 1, -1, -1):
            for place, _ in self.lines[row].pieces:
                self._line_of[place] = row
        self.virtual_size = Size(max(1, width), len(self.lines))
        self.refresh()

    def on_resize(self, event: Resize) -> None:
        self._lay_out()
        self._reveal()

    def _look(self) -> None:
        place = self._hovered if self._hovered >= 0 else self.cursor
        self.post_message(self.Looked(place if place < len(self.tokens) else -1))

    def _reveal(self) -> None:
        if not self.tokens or not self.lines:
            return
        row, top = self._line_of[self.cursor], self.scroll_offset.y
        if row <= 1:
            self.scroll_to(y=0, animate=False)  # with the heading
        elif row < top:
            self.scroll_to(y=row, animate=False)
        elif row >= top + self.size.height:
            self.scroll_to(y=row - self.size.height + 1, animate=False)

    def go(self, place: int) -> None:
        """Look at a token."""
        if self.tokens:
            self._hovered = -1
            self.cursor = max(0, min(place, len(self.tokens) - 1))
            self._reveal()
            self.refresh()
            self._look()

    def action_move(self, by: int) -> None:
        self.go(self.cursor + by)

    def action_go(self, place: int) -> None:
        self.go(place if place >= 0 else len(self.tokens) - 1)

    def action_page(self, by: int) -> None:
        self.action_line(by * max(1, self.size.height - 2))

    def action_line(self, by: int) -> None:
        """To the line so many further on, or as far as there are tokens, at about the same column."""
        if not self.tokens or not self.lines:
            return
        with_tokens = [row for row, made in enumerate(self.lines) if made.pieces]
        row = self._line_of[self.cursor]
        at = with_tokens.index(row) + (by if abs(by) == 1 else 0)
        if abs(by) > 1:
            at = min(range(len(with_tokens)), key=lambda place: abs(with_tokens[place] - row - by))
        target = with_tokens[max(0, min(at, len(with_tokens) - 1))]
        column = self._column(row, self.cursor)
        self.go(self._token_at(target, column, nearest=True))

    def next_unlikely(self, by: int) -> None:
        """To the next sampled token that had less than a tenth of the probability."""
        place = self.cursor + by
        while 0 <= place < len(self.tokens):
            token = self.tokens[place]
            if token.sampled and token.logprob is not None and token.logprob < UNLIKELY:
                self.go(place)
                return
            place += by

    def _column(self, row: int, place: int) -> int:
        column = 0
        for token, text in self.lines[row].pieces:
            if token == place:
                break
            column += Segment(text).cell_length
        return column

    def _token_at(self, row: int, column: int, *, nearest: bool = False) -> int:
        """Which token stands at a place of the text; -1 for none."""
        if not 0 <= row < len(self.lines):
            return -1
        for token, text in self.lines[row].pieces:
            column -= Segment(text).cell_length
            if column < 0:
                return token
        pieces = self.lines[row].pieces
        return pieces[-1][0] if nearest and pieces else -1

    def on_mouse_move(self, event: MouseMove) -> None:
        self._hover(self._token_at(self.scroll_offset.y + event.y, event.x))

    def on_leave(self, event: Leave) -> None:
        self._hover(-1)

    def _hover(self, place: int) -> None:
        if place != self._hovered:
            self._hovered = place
            self._look()

    def on_click(self, event: Click) -> None:
        place = self._token_at(self.scroll_offset.y + event.y, event.x)
        if place >= 0:
            self.go(place)

    def render_line(self, y: int) -> Strip:
        width = max(1, self.scrollable_content_region.width)
        row = self.scroll_offset.y + y
        if row >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        line = self.lines[row]
        if line.heading:
            return Strip([Segment(fitted(plain(line.heading), width), self.rich_style + STYLES["bold"])], width)
        segments = []
        for place, text in line.pieces:
            style = self.rich_style + colour(self.tokens[place], self.colouring, self.view.advantage)
            if place == self.cursor:
                style += Style(reverse=True, bold=True, dim=False)
            segments.append(Segment(text, style))
        return Strip(segments).adjust_cell_length(width, self.rich_style)
