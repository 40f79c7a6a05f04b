"""Lines of escaped text: what every widget of the viewer paints, and the only way to make them.

The text in a file of rollouts is hostile: `line` and `wrapped` replace all that could move, colour or reorder a
terminal's text, and styles are names of this module, never markup. Pure; widths are
in cells.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from whet.system.terminal import safe_lines, safe_text

STYLES = {
    "": Style.null(),
    "bold": Style(bold=True),
    "dim": Style(dim=True),
    "good": Style(color="green"),
    "middling": Style(color="yellow"),
    "bad": Style(color="red"),
    "name": Style(color="cyan"),
    "reasoning": Style(color="magenta", italic=True),
    "link": Style(color="blue", underline=True),
    "match": Style(reverse=True),
    "match-here": Style(reverse=True, bold=True, underline=True),
    "likely": Style(color="green"),
    "unlikely": Style(color="black", bgcolor="yellow"),
    "rare": Style(color="white", bgcolor="red"),
    "rarest": Style(color="white", bgcolor="red", bold=True, underline=True),
    "assistant": Style(color="green", bold=True),
    "user": Style(color="blue", bold=True),
    "system": Style(color="yellow", bold=True),
    "tool": Style(color="cyan", bold=True),
}
"""Colours are the terminal's named ones, so that they fit dark and light screens."""

# Characters that choose the look of the one before; terminals disagree about how wide it then is.
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_WIDE_ENOUGH = 4  # characters to a cell: more (a stack of combining marks) are broken like a line that is too long


@dataclass(frozen=True, slots=True)
class StyledLine:
    """One line of a screen: pieces of escaped text, each with the name of its style.

    `action` says what choosing the line does (`show:3`), as its widget understands it.
    """

    spans: tuple[tuple[str, str], ...] = ()
    action: str = ""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)

    def strip(self, width: int, base: Style, *, here: bool = False) -> Strip:
        """The line painted on the style `base`; `here`: this line's match is the current one."""
        spans = ((text, "match-here" if here and style == "match" else style) for text, style in self.spans)
        return Strip([Segment(text, base + STYLES[style]) for text, style in spans]).adjust_cell_length(width, base)


Part = str | tuple[object, str]
"""A text, or a text and the name of its style."""


def plain(text: object, limit: int = 400) -> str:
    """`text` on one line, without control characters."""
    return _SELECTORS.sub("", safe_text(text, limit))


def line(*parts: Part, action: str = "", limit: int = 400) -> StyledLine:
    """A line of these pieces."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return StyledLine(tuple((plain(text, limit), style) for text, style in pairs), action)


def wrapped(text: str, width: int, style: str = "", indent: str = "", query: str = "") -> Iterator[StyledLine]:
    """The lines of `text` in at most `width` cells, broken between words where that is possible.

    Where `query` occurs (in any case), its letters are marked, also across a break.
    """
    room = max(1, width - cell_len(indent))
    for paragraph in safe_lines(text):
        paragraph = _SELECTORS.sub("", paragraph)
        marks = matches(paragraph, query)
        for start, end in _pieces(paragraph, room):
            spans = tuple(_marked(paragraph, start, end, style, marks))
            yield StyledLine((((indent, ""), *spans) if indent else spans) or (("", ""),))


def matches(text: str, query: str) -> list[tuple[int, int]]:
    """Where `query` is found in `text`, in any case."""
    return [found.span() for found in re.finditer(re.escape(query), text, re.IGNORECASE)] if query else []


def fitted(text: str, width: int, right: bool = False, both_ends: bool = False) -> str:
    """`text` in exactly `width` cells: cut with an ellipsis, or filled with blanks.

    With `both_ends` what is cut out is in the middle, and more is kept of the end, where the question of a prompt is.
    """
    wide = len(text) if text.isascii() else cell_len(text)
    if wide > width and both_ends and width >= 9:
        start = fitted(text, width // 3)
        end = text[-(width - width // 3) :]
        while cell_len(end) > width - width // 3:
            end = end[1:]
        return start + end + " " * (width - width // 3 - cell_len(end))
    if wide > width:
        return text[: width - 1] + "…" if text.isascii() else set_cell_size(text, width - 1) + "…"
    blanks = " " * (width - wide)
    return blanks + text if right else text + blanks


def _pieces(paragraph: str, room: int) -> Iterator[tuple[int, int]]:
    """Where the lines of one paragraph begin and end."""
    if len(paragraph) <= room and (paragraph.isascii() or cell_len(paragraph) <= room):
        yield 0, len(paragraph)
        return
    simple = paragraph.isascii()
    start = 0
    while start < len(paragraph):
        end = start + room if simple else start + _reach(paragraph[start : start + room * _WIDE_ENOUGH], room)
        if end >= len(paragraph):
            yield start, len(paragraph)
            return
        # After the last blank that is on the line or right behind it; no break within the indentation.
        blank = paragraph.rfind(" ", start, end + 1)
        if blank > start and paragraph[start:blank].strip():
            yield start, blank
            start = blank + 1
        else:
            yield start, end
            start = end


def _reach(text: str, room: int) -> int:
    """How many characters of `text` fit into `room` cells, at least one."""
    chopped = chop_cells(text, room)  # nothing for marks without a letter, which take no room
    return max(1, len(chopped[0] if chopped else text))


def _marked(
    paragraph: str, start: int, end: int, style: str, marks: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, str]]:
    at = start
    for low, high in marks[bisect_right(marks, start, key=lambda mark: mark[1]) :]:
        low, high = max(low, at), min(high, end)
        if low >= high:
            break
        if at < low:
            yield paragraph[at:low], style
        yield paragraph[low:high], "match"
        at = high
    if at < end:
        yield paragraph[at:end], style
