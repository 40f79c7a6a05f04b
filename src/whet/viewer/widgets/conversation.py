"""A rollout as lines to read: the messages in pieces that can be folded or cut, and the details of its row. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from whet.records.heads import Head
from whet.records.rollout_text import MessagePiece, details
from whet.viewer.widgets.lines import StyledLine, line, wrapped
from whet.viewer.widgets.rollouts import reward_bar

CUT = 24
"""Lines that a piece may have before it is cut,"""
KEPT = 16
"""and how many are shown of one that is cut."""
WHOLE = 1_000_000
"""Characters that are shown of a piece at most; an export has them all."""


@dataclass(slots=True)
class Folding:
    """What the user opened: reasoning that is folded by default, and long pieces that are cut by default."""

    opened: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)

    def is_folded(self, piece: MessagePiece, found: bool = False) -> bool:
        """Whether only the title is shown; a piece with a match stays open unless it was closed."""
        return piece.key in self.closed or (piece.folded and not found and piece.key not in self.opened)

    def toggle(self, piece: MessagePiece, cut: bool) -> None:
        """What Enter does: open what is folded, show whole what is cut, fold or cut again what is open."""
        if self.is_folded(piece):
            self.closed.discard(piece.key)
            self.opened.add(piece.key)
        elif cut:
            self.whole ^= {piece.key}
        else:
            self.opened.discard(piece.key)
            self.closed.add(piece.key)


@dataclass(frozen=True, slots=True)
class ConversationLayout:
    """The lines of a conversation, where each piece begins, and which pieces are longer than a cut."""

    lines: list[StyledLine]
    starts: dict[str, int]
    long: set[str]


def lay_out(
    conversation: Sequence[MessagePiece], width: int, folding: Folding, *, query: str = "", current: str = ""
) -> ConversationLayout:
    """The lines of these pieces for a window of `width` cells; the piece `current` is marked."""
    lines: list[StyledLine] = []
    starts: dict[str, int] = {}
    long: set[str] = set()
    for piece in conversation:
        if piece.begins and lines:
            lines.append(line(""))
        starts[piece.key] = len(lines)
        found = bool(query) and query.casefold() in piece.text.casefold()
        folded = folding.is_folded(piece, found)
        body, is_long = ([], False) if folded else _body(piece, width, found or piece.key in folding.whole, query)
        if is_long:
            long.add(piece.key)
        lines.append(_title(piece, width, folded, piece.key == current))
        lines += body
    return ConversationLayout(lines, starts, long)


def _title(piece: MessagePiece, width: int, folded: bool, current: bool) -> StyledLine:
    mark = ("▌", "bold") if current else " "
    size = f", {len(piece.text):,} characters" if folded and piece.text else ""
    if piece.begins:
        rule = "─" * max(0, width - len(piece.title) - len(size) - 4)
        return line(mark, (piece.title, piece.role), (f"{size} {rule}", "dim"), action=piece.key, limit=width)
    return line(mark, "▸ " if folded else "▾ ", (piece.title, piece.style), (size, "dim"), action=piece.key)


def _body(piece: MessagePiece, width: int, whole: bool, query: str) -> tuple[list[StyledLine], bool]:
    """The lines under a title, and whether there are more of them than are shown at first."""
    if not piece.text:
        return [], False
    indent = "  " if piece.begins else "    "
    style = piece.style if piece.style in ("reasoning", "dim") else ""
    # As many characters as a cut could need, so that a text of any length costs no more than what is shown of it.
    head = piece.text[: (CUT + 1) * width]
    shown = list(islice(wrapped(head, width - 1, style, indent, query), CUT + 1))
    is_long = len(shown) > CUT or len(head) < len(piece.text)
    if not is_long:
        return shown, False
    if not whole:
        count = f"{len(piece.text):,}"
        more = line(indent, (f"show all {count} characters", "link"), action=piece.key)
        return [*shown[:KEPT], more], True
    shown = list(wrapped(piece.text[:WHOLE], width - 1, style, indent, query))
    if len(piece.text) > WHOLE:
        left = f"{len(piece.text) - WHOLE:,} more characters are not shown; an export has them"
        shown.append(line(indent, (left, "middling")))
    return shown, True


LONGEST = 2000  # characters of a value that are shown here


def detail_lines(row: Mapping[str, Any], head: Head, passed: float, width: int) -> list[StyledLine]:
    """Every fact, under headings."""
    lines: list[StyledLine] = []
    for title, facts in details(row, head, passed).items():
        lines += [line("")] if lines else []
        lines += [line((title, "bold"))] if title else []
        for name, value, style in facts:
            bar = f" {reward_bar(head.reward)}" if (title, name) == ("", "reward") else ""
            lines += _fact(name, f"{value}{bar}".rstrip(), style, width)
    return lines


def _fact(name: str, value: str, style: str, width: int) -> Iterator[StyledLine]:
    if not name:
        yield from wrapped(value[:LONGEST], width, style)
    elif "\n" not in value and len(name) + len(value) + 2 <= width:
        yield line((f"{name}  ", "dim"), (value, style))
    else:
        yield line((name, "dim"))
        yield from wrapped(value[:LONGEST], width, style, "  ")
