"""The skeleton of a report: `report.html` of a training run, an evaluation or a search, made from its files alone.

Each of them says which sections it has; here is what a head, a table, a sample and the settings look like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from whet.display.conversation import cut
from whet.display.html import Html, join, tag
from whet.display.text import number
from whet.errors import WhetError
from whet.system.files import write_whole

REPORT = "report.html"
MOST_ROWS = 1000
"""Rows of a table of tasks or examples."""
MOST_SETTINGS = 20_000
"""Characters of the settings that are shown."""


def write_page(directory: Path, page: str) -> Path:
    """Write `report.html` into a run's directory and return its path."""
    path = directory / REPORT
    write_whole(path, page, durable=False)
    return path


def report_or_note(write: Callable[[Path], Path], directory: Path, note: Callable[[str], None]) -> Path | None:
    """The report that a run ends with. One that cannot be written is noted; the results matter more than the page."""
    try:
        return write(directory)
    except (OSError, WhetError) as error:
        note(f"no report was written: {error}")
        return None


def head(title: str, facts: Iterable[str], tiles: Iterable[tuple[str, str]], *notes: Html) -> Html:
    """The title, facts in small letters, notes, and the most important numbers: (what it is, number) each."""
    shown = [tag("div", tag("b", value), tag("span", label), class_="tile") for label, value in tiles]
    return join(
        tag("h1", title),
        tag("p", ", ".join(filter(None, facts)), class_="sub"),
        *notes,
        tag("div", *shown, class_="tiles"),
    )


def section(title: str, *parts: Html, note: str = "") -> Html:
    """A section with its heading; nothing where all parts are empty."""
    if not any(parts):
        return join()
    return join(tag("h2", title), small(note), *parts)


def small(text: str) -> Html:
    """A note in small letters; nothing where there is no text."""
    return tag("p", text, class_="note") if text else join()


def error(text: str) -> Html:
    """Something that went wrong; nothing where there is no text."""
    return tag("p", text, class_="error") if text else join()


def verdict(title: str, text: str, lines: Iterable[str], colour: str) -> Html:
    """A box with a judgement, and what follows from it."""
    items = [tag("li", line) for line in lines]
    return tag("div", tag("b", title), text, tag("ul", *items) if items else join(), class_=f"verdict {colour}")


def table(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], *, text: bool = False) -> Html:
    """Rows of (name, cells), nothing where there are none; `text`: the cells are words and not numbers."""
    kind = "text" if text else None
    lines = [tag("tr", tag("td", name), *(tag("td", cell, class_=kind) for cell in cells)) for name, cells in rows]
    if not lines:
        return join()
    top = tag("thead", tag("tr", *(tag("th", name, class_=kind) for name in heads)))
    return tag("div", tag("table", top, tag("tbody", *lines)), class_="scroll")


def sortable_table(heads: Sequence[str], rows: Iterable[Sequence[Html]]) -> Html:
    """Cells in rows; a click on a column's head sorts by it (`sort.js`)."""
    buttons = [tag("th", tag("button", name, type="button"), scope="col") for name in heads]
    body = tag("tbody", *(tag("tr", *cells) for cells in rows))
    return tag("div", tag("table", tag("thead", tag("tr", *buttons)), body, class_="tasks"), class_="scroll")


def number_cell(value: float | None, digits: int = 3) -> Html:
    """A number, with all its digits for sorting."""
    return tag("td", number(value, digits), data_value="" if value is None else f"{value:.9g}")


def sample(name: str, facts: str, *parts: Html, opened: bool = False) -> Html:
    """A rollout or a candidate that unfolds below one line."""
    summary = tag("summary", tag("b", name), tag("span", facts))
    return tag("details", summary, *parts, class_="sample", open="" if opened else None)


def settings(title: str, name: str, text: str) -> Html:
    """The file with the settings, folded."""
    shown = tag("details", tag("summary", name), tag("pre", cut(text, MOST_SETTINGS)))
    return section(title, shown)
