"""The tokens of one rollout: what was sampled, how likely it was, by which weights, and what training makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click, Leave, MouseMove, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from whet.errors import WhetError
from whet.inference.rendering.vocabulary import run_vocabulary
from whet.records.tokens import (
    LIKELY,
    Colouring,
    Decode,
    Token,
    TokenView,
    colourings,
    describe,
    token_view,
)
from whet.viewer.listing import Listing
from whet.viewer.screens.base import LAST_KEYS, RolloutView
from whet.viewer.widgets.lines import STYLES, StyledLine, fitted, line, plain
from whet.viewer.widgets.panes import Bar, Keys, LineView
from whet.viewer.widgets.rollouts import reward_parts
from whet.viewer.widgets.tokens import TokenLine, colour, token_lines

UNLIKELY = -2.302585  # the logarithm of a tenth


class TokenText(LineView):
    """Tokens in lines. `Looked` reports the current one: the one at the cursor or under the mouse."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "token before", show=False),
        Binding("right", "move(1)", "next token", show=False),
    ]

    class Looked(Message):
        """Another token is the current one; -1 for none."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

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
        """The tokens of another rollout; the cursor starts at the first sampled one."""
        self.view, self.tokens = view, list(view.tokens)
        self._hovered = -1
        self.cursor = next((index for index, token in enumerate(self.tokens) if token.sampled), 0)
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
            for index, _ in self.lines[row].pieces:
                self._line_of[index] = row
        self.virtual_size = Size(max(1, width), len(self.lines))
        self.refresh()

    def on_resize(self, event: Resize) -> None:
        self._lay_out()
        self._reveal()

    def _look(self) -> None:
        index = self._hovered if self._hovered >= 0 else self.cursor
        self.post_message(self.Looked(index if index < len(self.tokens) else -1))

    def _reveal(self) -> None:
        if not self.tokens or not self.lines:
            return
        row = self._line_of[self.cursor]
        if row <= 1:
            self.scroll_to(y=0, animate=False)  # with the heading
        else:
            self.scroll_to_region(Region(0, row, 1, 1), animate=False)

    def go(self, index: int) -> None:
        """Move the cursor to a token."""
        if self.tokens:
            self._hovered = -1
            self.cursor = max(0, min(index, len(self.tokens) - 1))
            self._reveal()
            self.refresh()
            self._look()

    def action_move(self, by: int) -> None:
        self.go(self.cursor + by)

    def action_top(self) -> None:
        self.go(0)

    def action_bottom(self) -> None:
        self.go(len(self.tokens) - 1)

    def action_by(self, lines: int) -> None:
        """To the line so many further on, or as far as there are tokens, at about the same column."""
        if not self.tokens or not self.lines:
            return
        with_tokens = [row for row, made in enumerate(self.lines) if made.pieces]
        row = self._line_of[self.cursor]
        at = with_tokens.index(row) + (lines if abs(lines) == 1 else 0)
        if abs(lines) > 1:
            at = min(range(len(with_tokens)), key=lambda index: abs(with_tokens[index] - row - lines))
        target = with_tokens[max(0, min(at, len(with_tokens) - 1))]
        column = self._column(row, self.cursor)
        self.go(self._token_at(target, column, nearest=True))

    def next_unlikely(self, by: int) -> None:
        """To the next sampled token that had less than a tenth of the probability."""
        index = self.cursor + by
        while 0 <= index < len(self.tokens):
            token = self.tokens[index]
            if token.sampled and token.logprob is not None and token.logprob < UNLIKELY:
                self.go(index)
                return
            index += by

    def _column(self, row: int, index: int) -> int:
        column = 0
        for token, text in self.lines[row].pieces:
            if token == index:
                break
            column += Segment(text).cell_length
        return column

    def _token_at(self, row: int, column: int, *, nearest: bool = False) -> int:
        """The token at a position of the text; -1 for none."""
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

    def _hover(self, index: int) -> None:
        if index != self._hovered:
            self._hovered = index
            self._look()

    def on_click(self, event: Click) -> None:
        index = self._token_at(self.scroll_offset.y + event.y, event.x)
        if index >= 0:
            self.go(index)

    def render_line(self, y: int) -> Strip:
        width = max(1, self.scrollable_content_region.width)
        row = self.scroll_offset.y + y
        if row >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        line = self.lines[row]
        if line.heading:
            return Strip([Segment(fitted(plain(line.heading), width), self.rich_style + STYLES["bold"])], width)
        segments = []
        for index, text in line.pieces:
            style = self.rich_style + colour(self.tokens[index], self.colouring, self.view.advantage)
            if index == self.cursor:
                style += Style(reverse=True, bold=True, dim=False)
            segments.append(Segment(text, style))
        return Strip(segments).adjust_cell_length(width, self.rich_style)


LEGENDS = {
    "advantage": "green: positive, made likelier by training; red: negative; struck: not trained on",
    "ratio": "of the learner's probability to the sampler's: yellow beyond 0.8 to 1.25, red beyond 0.5 to 2; "
    "underlined: clipped; struck: not trained on",
    "version": "a colour for each policy version",
}


class TokensScreen(RolloutView):
    """The tokens of the rollout that the listing is at."""

    NAME: ClassVar[str] = "Tokens"
    HELP: ClassVar[str] = """
Grey tokens were given to the model, the others were sampled by it. Below stands what is known of the one at the cursor
or under the mouse: its number, text, logprob, the policy version that sampled it, and in training its advantage.

← → ↑ ↓   another token
n N       next and previous token that had less than 10 % of the probability
c         colour by probability, by advantage, and by what else is known
[ ]       the rollout before and after in the list

Rollouts of training have tokens. Those of an evaluation do not: their model is reached as text.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "step(-1)", "before"),
        Binding("right_square_bracket", "step(1)", "after"),
        Binding("n", "unlikely(1)", "next unlikely"),
        Binding("N", "unlikely(-1)", "previous"),
        Binding("c", "colour", "colour by"),
        Binding("g", "open('group')", "group"),
        Binding("y", "copy", "copy"),
        Binding("x", "export", "export"),
        Binding("escape", "back", "back"),
        *LAST_KEYS,
    ]
    DEFAULT_CSS = """
    TokensScreen #token { height: 2; }
    """

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self._decode: Decode | None = None
        self._note = ""
        self._without_text = ""  # why tokens have no text
        self._loaded = False

    def compose(self) -> ComposeResult:
        yield Bar([line(" reading ...")], id="where")
        yield TokenText()
        yield Bar([line(""), line("")], id="token")
        yield Keys()

    def on_mount(self) -> None:
        self.query_one(TokenText).focus()
        self.read()

    async def show_row(self, row: Mapping[str, Any], problem: str) -> None:
        view = TokenView([], None)
        self._note = problem
        if row.get("turns") and not self._loaded:
            self._loaded = True
            await self._load_decode()
        try:
            view = view if problem else await asyncio.to_thread(token_view, row, self._decode)
        except WhetError as error:
            self._note = str(error)
        self.query_one(TokenText).show(view)
        self.show_status()

    async def _load_decode(self) -> None:
        try:
            source = self.listing.store.source
            vocabulary = await asyncio.to_thread(run_vocabulary, source.rollouts.parent, source.model)
            self._decode = vocabulary.texts
        except WhetError as error:
            self._without_text = f"tokens are shown as numbers: {error}"

    def show_status(self) -> None:
        if self.listing.number is None:
            return
        text = self.query_one(TokenText)
        head = self.listing.head(self.listing.number)
        title = f" tokens of rollout {self.listing.position() + 1:,} of {len(self.listing.heads):,}"
        parts = [(title, "bold"), " ", *reward_parts(head, self.listing.passed, bar=False)]
        note = self._note or text.view.note or ""
        lines = [line(*parts), line((f" {note}", "middling")) if note else self._legend()]
        if self._without_text:
            lines.append(line((f" {self._without_text}", "middling")))
        self.query_one("#where", Bar).show(lines)

    def _legend(self) -> StyledLine:
        text = self.query_one(TokenText)
        if text.colouring == "logprob":
            scale = [part for _, name, style in LIKELY for part in ((name, style), "  ")]
            return line((" colours", "bold"), ": probability of at least ", *scale)
        return line((" colours", "bold"), f": {text.colouring}; {LEGENDS[text.colouring]}")

    def on_token_text_looked(self, event: TokenText.Looked) -> None:
        text = self.query_one(TokenText)
        if event.index < 0:
            self.query_one("#token", Bar).show([line(""), line("")])
            return
        words = describe(text.tokens[event.index], event.index, len(text.tokens), text.view.advantage)
        lines = [line(" " + ", ".join(words[:3])), line(" " + ", ".join(words[3:]))]
        self.query_one("#token", Bar).show(lines)

    # Actions.

    def action_unlikely(self, by: int) -> None:
        self.query_one(TokenText).next_unlikely(by)

    def action_colour(self) -> None:
        text = self.query_one(TokenText)
        ways = colourings(text.view)
        at = ways.index(text.colouring) + 1 if text.colouring in ways else 0
        text.colour_by(ways[at % len(ways)])
        self.show_status()
