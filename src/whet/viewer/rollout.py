"""The screens of one rollout: its conversation, the rollouts of its group side by side, its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

from rich.cells import chop_cells
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Resize

from whet.display.lines import STYLES, plain, side_by_side, styled, wrapped
from whet.errors import WhetError
from whet.inference.rendering.vocabulary import run_vocabulary
from whet.records.heads import Head
from whet.records.listing import Listing, about, from_mean, group_summary, mean_reward, origin
from whet.records.rollout_text import MessagePiece, details, pieces
from whet.records.tokens import (
    UNLIKELY,
    Colouring,
    Decode,
    TokenView,
    colourings,
    describe,
    legend,
    token_style,
    token_view,
)
from whet.viewer.screens import RowScreen

CUT, KEPT = 24, 16
"""Lines that a piece may have before it is cut, and how many are shown of one that is."""
WHOLE = 1_000_000
"""Characters that are shown of a piece at most; an export has them all."""
DETAILS = "details"
"""The key of the facts of a row, which follow the conversation."""
NARROWEST = 36
"""Cells that a column of a group has at least, as long as the window is not narrower itself."""


def conversation(shown: Sequence[MessagePiece], width: int, opened: set[str], query: str = "") -> list[Text]:
    """The lines of these pieces: reasoning folded and long texts cut, unless opened or with a match."""
    lines: list[Text] = []
    for piece in shown:
        whole = piece.key in opened or (bool(query) and query.casefold() in piece.text.casefold())
        folded = piece.folded and not whole
        size = f", {len(piece.text):,} characters" if folded else ""
        rule = "─" * max(0, width - len(piece.title) - 4) if piece.begins else ""
        fold = "" if piece.begins else "▸ " if folded else "▾ "
        if piece.begins and lines:
            lines.append(Text())
        title = styled(fold, (piece.title, piece.role or piece.style), key=piece.key)
        lines.append(title.append_text(styled((f"{size} {rule}", "dim"))))
        if not folded:
            lines += _body(piece, width, whole, query)
    return lines


def _body(piece: MessagePiece, width: int, whole: bool, query: str) -> list[Text]:
    """The lines under a title: all of them, or the first ones and how to see the rest."""
    style = piece.style if piece.style in ("reasoning", "dim") else ""
    indent = 2 if piece.begins else 4
    # As many characters as a cut could need, so that a text of any length costs no more than what is shown of it.
    text = piece.text[: WHOLE if whole else (CUT + 1) * width]
    lines = list(wrapped(text, width - 1, style, indent, query)) if text else []
    if not whole and (len(lines) > CUT or len(text) < len(piece.text)):
        more = f"show all {len(piece.text):,} characters"
        return [*lines[:KEPT], styled(" " * indent, (more, "link"), key=piece.key)]
    if len(text) < len(piece.text):
        left = f"{len(piece.text) - WHOLE:,} more characters are not shown; an export has them"
        lines.append(styled(" " * indent, (left, "middling")))
    return lines


def detail_lines(row: Mapping[str, Any], head: Head, passed: float, width: int) -> list[Text]:
    """Every fact of a row that is no message, under headings."""
    lines: list[Text] = []
    for title, facts in details(row, head, passed).items():
        lines += [Text(), styled((title, "bold"))] if title else []
        for name, value, style in facts:
            if name and "\n" not in value and len(name) + len(value) + 2 <= width:
                lines.append(styled((f"{name}  ", "dim"), (value, style)))
            else:
                lines += [styled((name, "dim"))] if name else []
                lines += wrapped(value[:2000], width, style, 2 if name else 0)
    return lines


class RolloutScreen(RowScreen):
    """The rollout that the listing is at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "before"),
        Binding("right", "step(1)", "after"),
        Binding("tab", "piece(1)", "next piece"),
        Binding("shift+tab", "piece(-1)", "piece before", show=False),
        Binding("enter", "fold", "open or fold"),
        Binding("r", "fold_all(True)", "reasoning"),
        Binding("a", "fold_all(False)", "show all"),
        Binding("i", "details", "details"),
    ]

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self.pieces: Sequence[MessagePiece] = ()
        self._of: int | None = None  # the rollout that the pieces are of
        self._opened: set[str] = set()
        self._go_to_match = 0  # the direction in which the first match of a rollout is to be shown

    async def show_rows(self) -> None:
        is_another, self._of = self._of != self.listing.number, self.listing.number
        row = self.rows[self.shown[0]]
        if is_another:
            self.pieces, self._opened = [] if isinstance(row, str) else pieces(row), set()
            self.document.current = self.pieces[0].key if self.pieces else ""
        self.document.show(top=is_another)
        self.show_status()
        if self._go_to_match:
            self.document.reading = -1 if self._go_to_match > 0 else len(self.document.lines)
            self.document.to_match(self._go_to_match)
            self._go_to_match = 0

    def show_status(self) -> None:
        self.status(*(styled(" ", *line) for line in self.listing.about()))

    def lines(self, width: int) -> list[Text]:
        """The conversation and the details, or why they cannot be read."""
        head = self.listing.current
        row = self.rows.get(head.number, "") if head is not None else ""
        if head is None or isinstance(row, str):
            return list(wrapped(row if isinstance(row, str) else "", width, "bad"))
        left_out = row.get("left_out_bytes")
        note = f"This line is very long: {left_out} bytes of it are not shown. x writes it as it is in the file."
        before = [*wrapped(note, width, "middling"), Text()] if left_out else []
        said = conversation(self.pieces, width, self._opened, self.listing.query)
        title = styled(("details", "bold"), key=DETAILS).append_text(styled((f" {'─' * (width - 10)}", "dim")))
        return [*before, *said, Text(), title, *detail_lines(row, head, self.listing.passed, width)]

    # Actions.

    def action_piece(self, by: int) -> None:
        keys = list(self.document.rows)
        if self.document.current in keys:
            self.document.go(keys[max(0, min(keys.index(self.document.current) + by, len(keys) - 1))])

    def action_details(self) -> None:
        self.document.scroll_to(y=self.document.rows.get(DETAILS, 0), animate=False)

    def action_fold(self) -> None:
        self.clicked(self.document.current)

    def clicked(self, key: str) -> None:
        """Open or fold a piece, or show a long one whole or cut."""
        self._opened ^= {key}
        self.document.show()
        self.document.go(key)

    def action_fold_all(self, reasoning: bool) -> None:
        """Open all reasoning, or everything; or close it again."""
        keys = {piece.key for piece in self.pieces if piece.folded or not reasoning}
        self._opened = self._opened - keys if keys <= self._opened else self._opened | keys
        self.document.show()

    def action_match(self, by: int) -> None:
        if not self.document.to_match(by):
            self._go_to_match = by
            super().action_match(by)


class GroupScreen(RowScreen):
    """The rollouts of the group of the one that the listing is at, as many as fit, in columns that scroll together."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "before"),
        Binding("right", "step(1)", "after"),
        Binding("enter", "open('rollout')", "open"),
        Binding("p", "with('prompt')", "prompt"),
        Binding("r", "with('reasoning')", "reasoning"),
    ]

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self._group = listing.store.group(listing.number or 0)
        self._with: set[str] = set()  # what is shown besides answers: the prompt, reasoning

    @property
    def _at(self) -> int:
        """Which of the group the listing is at."""
        return self._group.index(self.listing.number) if self.listing.number in self._group else 0

    @property
    def shown(self) -> Sequence[int]:
        """As many as fit into the window, the listing's among them."""
        count = max(1, min(self.size.width // NARROWEST, len(self._group)))
        first = max(0, min(self._at - count // 2, len(self._group) - count))
        return self._group[first : first + count]

    def show_status(self) -> None:
        heads, shown = [self.listing.head(one) for one in self._group], self.shown
        first = self._group.index(shown[0]) + 1
        window = f"  {first}-{first + len(shown) - 1} of " if len(shown) < len(heads) else "  "
        tops = [[self._top(head, mean_reward(heads))] for head in heads if head.number in shown]
        self.status(
            styled((" group of ", "bold"), origin(replace(heads[0], candidate=None)), window, group_summary(heads)),
            styled((f" {heads[0].question}", "dim")),
            *side_by_side(tops, self.document.width or self.size.width),
        )

    def _top(self, head: Head, mean: float | None) -> Text:
        """The head of a column."""
        mark = "▌" if head.number == self.listing.number else " "
        reward, *others = about(head, self.listing.passed)[1:]
        difference, style = from_mean(head, mean)
        candidate = f"  candidate {head.candidate}" if head.candidate else ""
        return styled((f"{mark}{head.place + 1} ", "bold"), reward, (f" {difference}", style), candidate, *others)

    def lines(self, width: int) -> list[Text]:
        columns = [self._column(self.rows.get(one, ""), width // len(self.shown) - 2) for one in self.shown]
        return side_by_side(columns, width)

    def _column(self, row: Mapping[str, Any] | str, width: int) -> list[Text]:
        if isinstance(row, str):
            return list(wrapped(row, width, "bad"))
        wanted = [piece for piece in pieces(row) if "prompt" in self._with or not piece.key.startswith("prompt")]
        opened = {piece.key for piece in wanted if "reasoning" in self._with or not piece.folded}
        return conversation(wanted, width, opened, self.listing.query)

    def read(self) -> None:
        self._group = self.listing.store.group(self.listing.number or 0)
        super().read()

    def on_resize(self, event: Resize) -> None:
        self.read()

    def action_step(self, by: int) -> None:
        self.listing.number = self._group[max(0, min(self._at + by, len(self._group) - 1))]
        self.read()

    def action_with(self, what: str) -> None:
        self._with ^= {what}
        self.document.show()


def token_lines(view: TokenView, width: int, by: Colouring) -> list[Text]:
    """The tokens of a rollout in lines of at most `width` cells, each keyed by its index; a heading above each turn."""
    lines: list[Text] = []
    index = 0
    for turn in view.turns:
        lines += [styled((text, "bold")) for text in (turn.heading, turn.note) if text]
        text = Text(end="")
        for token in turn.tokens:
            style = Style.parse(STYLES.get(token_style(token, by, view.advantage), ""))
            text.append("\n".join(plain(line, 200) for line in token.shown), style + Style(meta={"key": str(index)}))
            index += 1
        for line in text.split("\n"):
            ends = list(accumulate(map(len, chop_cells(line.plain, width))))
            lines += line.divide(ends[:-1])
        lines.append(Text())
    return lines


class TokenScreen(RowScreen):
    """The tokens of the rollout that the listing is at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "token before"),
        Binding("right", "move(1)", "next token"),
        Binding("n", "move(1, True)", "next unlikely"),
        Binding("N", "move(-1, True)", "previous unlikely", show=False),
        Binding("c", "colour", "colour by"),
        Binding("left_square_bracket", "step(-1)", "rollout before"),
        Binding("right_square_bracket", "step(1)", "rollout after"),
    ]

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self._decode: Decode | None = None
        self._view = TokenView([], None)
        self._colouring: Colouring = "logprob"
        self._note = ""
        self._without_text = ""  # why tokens have no text

    def lines(self, width: int) -> list[Text]:
        return token_lines(self._view, width, self._colouring)

    async def show_rows(self) -> None:
        row = self.rows[self.shown[0]]
        self._view, self._note = TokenView([], None), row if isinstance(row, str) else ""
        if not isinstance(row, str):
            if row.get("turns") and self._decode is None and not self._without_text:
                await self._load_decode()
            self._view = await asyncio.to_thread(token_view, row, self._decode)
        self.document.show(top=True)
        self.clicked(next((str(at) for at, token in enumerate(self._view.tokens) if token.sampled), "0"))

    async def _load_decode(self) -> None:
        source = self.listing.store.source
        try:
            self._decode = (await asyncio.to_thread(run_vocabulary, source.rollouts.parent, source.model)).texts
        except WhetError as error:
            self._without_text = f"tokens are shown as numbers: {error}"

    def show_status(self) -> None:
        head, note = self.listing.current, self._note or self._view.note or self._without_text
        tokens = list(self._view.tokens)
        if head is None:
            return
        title = f" tokens of rollout {self.listing.position() + 1:,} of {len(self.listing.heads):,} "
        lines = [styled((title, "bold"), *about(head, self.listing.passed))]
        lines.append(styled((f" {note}", "middling")) if note else styled(*legend(self._colouring)))
        at = int(self.document.current or 0)
        words = describe(tokens[at], at, len(tokens), self._view.advantage) if at < len(tokens) else []
        self.status(*lines, styled(" ", ", ".join(words[:3])), styled(" ", ", ".join(words[3:])))

    # Actions.

    def clicked(self, key: str) -> None:
        """Put the cursor on a token, and show what is known of it."""
        self.document.go(key)
        self.show_status()

    def action_move(self, by: int, unlikely: bool = False) -> None:
        """To the next token, or the one before; with `unlikely`, of those that had less than a tenth."""
        tokens, here = list(self._view.tokens), int(self.document.current or 0)
        ahead = range(here + 1, len(tokens)) if by > 0 else range(here - 1, -1, -1)
        wanted = (at for at in ahead if not unlikely or (tokens[at].sampled and (tokens[at].logprob or 0) < UNLIKELY))
        self.clicked(str(next(wanted, here)))

    def action_colour(self) -> None:
        ways = colourings(self._view)
        self._colouring = ways[(ways.index(self._colouring) + 1) % len(ways) if self._colouring in ways else 0]
        self.document.show()
        self.show_status()
