"""Escaped text for terminals, as rich has it: single and wrapped lines, columns and their cells. Pure.

What models and environments wrote is hostile: `styled` and `wrapped` replace all that could move, colour or reorder a
terminal's text, and never read markup. Names of styles are those of `STYLES`, or rich's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from whet.system.terminal import safe_lines, safe_text

STYLES = {
    "good": "green",
    "middling": "yellow",
    "bad": "red",
    "name": "cyan",
    "reasoning": "italic magenta",
    "link": "underline blue",
    "match": "reverse",
    "current": "bold not dim reverse",
    "likely": "green",
    "unlikely": "black on yellow",
    "rare": "white on red",
    "rarest": "bold underline white on red",
    "given": "dim",
    "masked": "dim strike",
    "up": "green",
    "down": "red",
    "off": "yellow",
    "far": "red",
    "clipped": "underline",
    "off clipped": "underline yellow",
    "far clipped": "underline red",
    "version-0": "cyan",
    "version-1": "magenta",
    "version-2": "yellow",
    "version-3": "green",
    "assistant": "bold green",
    "user": "bold blue",
    "system": "bold yellow",
    "tool": "bold cyan",
}
"""Colours are the terminal's named ones, so that they fit dark and light screens."""
CONSOLE = Console(theme=Theme(STYLES))
"""Knows the styles, and nothing of the terminal."""

# Characters that choose the look of the one before, of which terminals disagree about the width; and all but the first
# four of the marks on one letter.
_REMOVED = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]|(?<=[\u0300-\u036f]{4})[\u0300-\u036f]")
Part = str | tuple[object, str]
"""A text, or a text and the name of its style."""


def plain(text: object, limit: int = 400) -> str:
    """`text` on one line, without control characters."""
    return _REMOVED.sub("", safe_text(text, limit))


def styled(*parts: Part, key: str = "", limit: int = 400) -> Text:
    """One line of these pieces; `key` is what a click on it is reported as."""
    made = Text(end="")
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        made.append(plain(text, limit), style)
    if key:
        made.stylize(Style(meta={"key": key}))
    return made


def wrapped(text: str, width: int, style: str = "", indent: int = 0, query: str = "") -> Iterator[Text]:
    """The lines of `text` in at most `width` cells, with every place of `query`, in any case, marked."""
    made = Text()
    made.append(_REMOVED.sub("", "\n".join(safe_lines(text))), style)
    if query:
        made.highlight_regex(re.compile(re.escape(query), re.IGNORECASE), "match")
    for line in made.wrap(CONSOLE, max(2, width - indent), overflow="fold"):
        yield Text(" " * indent, end="").append_text(line) if indent else line


def keys_in(line: Text) -> list[str]:
    """What clicks on a line can be reported as."""
    return [span.style.meta["key"] for span in line.spans if isinstance(span.style, Style) and span.style.meta]


def fitted(text: str, width: int, *, right: bool = False, both_ends: bool = False) -> str:
    """`text`, which is escaped, in exactly `width` cells: cut with an ellipsis, or filled with blanks.

    With `both_ends` what is cut out is in the middle: the question of a prompt is mostly at its end.
    """
    if both_ends and cell_len(text) > width >= 9:
        text = set_cell_size(text, width // 3 - 1) + "…" + text[width // 3 - width :]
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def side_by_side(columns: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """The lines of columns that share `width` cells."""
    lines = []
    for parts in zip_longest(*columns, fillvalue=Text()):
        line = Text(end="")
        for at, part in enumerate(parts):
            cell = part.copy()
            cell.truncate(width // len(parts) - 2, overflow="crop", pad=True)
            line.append("│ " if at else " ", "dim").append_text(cell)
        lines.append(line)
    return lines


RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """A column of a table. Of those that do not all fit, the ones with the highest `rank` are left out."""

    title: str
    width: int
    cell: Callable[[RowT], Part]
    rank: int = 0
    right: bool = False
    stretch: bool = False  # takes the room that is left; `width` is its least
    both_ends: bool = False  # of a text that is too long, its beginning and its end are shown
    sort: str | None = None  # what a click on the title sorts by


def layout(columns: Sequence[Column[RowT]], width: int) -> list[tuple[Column[RowT], int]]:
    """The columns that fit into `width` cells, in their order, each with its width."""

    def needed() -> int:
        return sum(column.width + 1 for column in kept) - 1

    kept = list(columns)
    while len(kept) > 1 and needed() > width:
        kept.remove(max(reversed(kept), key=lambda column: column.rank))
    share, rest = divmod(max(0, width - needed()), max(1, sum(column.stretch for column in kept)))
    widths = []
    for column in kept:
        widths.append(min(width, column.width + (share + (rest > 0) if column.stretch else 0)))
        rest -= column.stretch
    return list(zip(kept, widths, strict=True))
