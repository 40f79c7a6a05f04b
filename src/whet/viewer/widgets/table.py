"""A table of any number of rows, of which only those on the screen are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.events import Click, Resize
from textual.geometry import Region, Size, Spacing
from textual.reactive import reactive
from textual.strip import Strip

from whet.records.heads import SortColumn
from whet.viewer.widgets.lines import STYLES, fitted, plain
from whet.viewer.widgets.panes import LineView

GAP = 1
RowT = TypeVar("RowT")
Cell = str | tuple[str, str]
"""Text, or text and the name of its style (`lines.STYLES`). It is escaped here."""


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """A column of a table. Of those that do not all fit, the ones with the highest `rank` are left out."""

    title: str
    width: int
    cell: Callable[[RowT], Cell]
    rank: int = 0
    right: bool = False
    stretch: bool = False  # takes the room that is left; `width` is its least
    both_ends: bool = False  # of a text that is too long, its beginning and its end are shown
    sort: SortColumn | None = None  # what a click on the title sorts by


def layout(columns: Sequence[Column[RowT]], width: int) -> list[tuple[Column[RowT], int]]:
    """The columns that fit into `width` cells, in their order, each with its width."""
    kept = list(columns)
    while len(kept) > 1 and _needed(kept) > width:
        kept.remove(max(reversed(kept), key=lambda column: column.rank))
    spare = max(0, width - _needed(kept))
    stretched = [column for column in kept if column.stretch]
    shares = {
        column.title: spare // len(stretched) + (at < spare % len(stretched)) for at, column in enumerate(stretched)
    }
    return [(column, min(width, column.width + (shares[column.title] if column.stretch else 0))) for column in kept]


def _needed(columns: Sequence[Column[RowT]]) -> int:
    return sum(column.width + GAP for column in columns) - GAP


class TableView(LineView, Generic[RowT]):
    """Rows under a head that stays. A click chooses a row; so does the screen's Enter, through `action_choose`.

    What the user does is passed on at once, not as a message: until a message arrived, the rows could be others.

    Args:
        columns: All columns; what does not fit into the window is left out, see `layout`.
        row_at: Called for each row that comes onto the screen.
        choose: Called with the row of Enter or of a click.
        move: Called with the row that the user put the cursor on.
        sort: Called with a column whose title was clicked.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--head", "table--cursor"}
    DEFAULT_CSS = """
    TableView .table--head { text-style: bold; color: $foreground; background: $panel; }
    TableView .table--cursor { background: $primary; color: $text; text-style: bold; }
    TableView:ansi .table--cursor { text-style: reverse; }
    """

    cursor: reactive[int] = reactive(0, repaint=False)
    count: reactive[int] = reactive(0, repaint=False)

    def __init__(
        self,
        columns: Sequence[Column[RowT]],
        row_at: Callable[[int], RowT],
        choose: Callable[[int], object],
        *,
        move: Callable[[int], object] = lambda row: None,
        sort: Callable[[SortColumn], object] = lambda column: None,
    ) -> None:
        super().__init__()
        self.columns = list(columns)
        self._row_at, self._choose, self._moved, self._sort = row_at, choose, move, sort
        self.sorted: tuple[SortColumn, str] | None = None  # what the rows are sorted by, and the arrow that shows it
        self.empty = ""  # what is said where there are no rows
        self._layout: list[tuple[Column[RowT], int]] = []

    @property
    def _width(self) -> int:
        """Cells of a line, without the scrollbar."""
        return max(1, self.scrollable_content_region.width)

    def show(self, count: int, cursor: int | None = None) -> None:
        """There are `count` rows now, and any of them may be another than before."""
        self.count = count
        self.virtual_size = Size(self._width, count + 1)
        self.cursor = self.cursor if cursor is None else cursor
        self.refresh()
        self._reveal()

    def set_columns(self, columns: Sequence[Column[RowT]]) -> None:
        self.columns = list(columns)
        self._layout = layout(self.columns, self._width)
        self.refresh()

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, self.count - 1))

    def watch_cursor(self, before: int, after: int) -> None:
        for row in (before, after):
            self.refresh_line(row + 1)

    def on_resize(self, event: Resize) -> None:
        self._layout = layout(self.columns, self._width)
        self.virtual_size = Size(self._width, self.count + 1)
        self._reveal()

    def action_by(self, lines: int) -> None:
        self._move(self.cursor + lines)

    def action_top(self) -> None:
        self._move(0)

    def action_bottom(self) -> None:
        self._move(self.count - 1)

    def _move(self, row: int) -> None:
        if self.count:
            self.go(row)
            self._moved(self.cursor)

    def action_choose(self) -> None:
        if self.count:
            self._choose(self.cursor)

    def go(self, row: int) -> None:
        """Put the cursor on a row and bring it onto the screen."""
        self.cursor = row
        self._reveal()

    def _reveal(self) -> None:
        """Scroll just as far as it takes for the cursor to be seen, below the head."""
        self.scroll_to_region(Region(0, self.cursor + 1, 1, 1), spacing=Spacing(top=1), animate=False)

    def on_click(self, event: Click) -> None:
        if event.y == 0:
            at = event.x
            for column, width in self._layout:
                if at < width + GAP:
                    if column.sort is not None:
                        self._sort(column.sort)
                    return
                at -= width + GAP
            return
        row = self.scroll_offset.y + event.y - 1
        if row < self.count:
            self._move(row)
            self.action_choose()

    def render_line(self, y: int) -> Strip:
        style = self.rich_style
        if y == 0:
            titles = [self._title(column) for column, _ in self._layout]
            return self._strip(titles, self.get_component_rich_style("table--head"))
        row = self.scroll_offset.y + y - 1
        if row >= self.count:
            text = plain(self.empty) if not self.count and y == 2 else ""
            return Strip([Segment(fitted(text, self._width), style + STYLES["dim"])], self._width)
        if row == self.cursor and self.has_focus:
            return self._strip(self._visible(row), self.get_component_rich_style("table--cursor"), plain_colours=True)
        return self._strip(self._visible(row), style)

    def _title(self, column: Column[RowT]) -> Cell:
        is_sorted = self.sorted is not None and column.title and column.sort == self.sorted[0]
        return column.title + self.sorted[1] if self.sorted is not None and is_sorted else column.title

    def _visible(self, row: int) -> list[Cell]:
        values = self._row_at(row)
        return [column.cell(values) for column, _ in self._layout]

    def _strip(self, cells: Sequence[Cell], style: Style, *, plain_colours: bool = False) -> Strip:
        """One line. On the cursor's bar the cells keep no colour of their own, which might not be seen there."""
        segments = []
        for cell, (column, width) in zip(cells, self._layout, strict=True):
            text, name = cell if isinstance(cell, tuple) else (cell, "")
            shown = fitted(plain(text), width, column.right, column.both_ends)
            segments.append(Segment(shown, style if plain_colours or not name else style + STYLES[name]))
            segments.append(Segment(" " * GAP, style))
        return Strip(segments).adjust_cell_length(self._width, style)
