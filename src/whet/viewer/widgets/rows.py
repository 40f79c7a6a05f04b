"""A table of any number of rows: only those that are on the screen are asked for, and only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from whet.viewer.widgets.columns import GAP, Column, layout
from whet.viewer.widgets.lines import STYLES, fitted, plain

Cell = str | tuple[str, str]
"""Text, or text and the name of its style (`lines.STYLES`). It is made harmless here."""
Cells = Callable[[int], Sequence[Cell]]
"""The cells of a row, one for each column."""


class Rows(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows under a head that stays. A click chooses a row; so does the screen's Enter, through `action_choose`.

    Args:
        columns: All columns; what does not fit into the window is left out, see `columns.layout`.
        cells: Asked for each row that comes onto the screen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown,space", "page(1)", "page down", show=False),
        Binding("home", "go(0)", "first row", show=False),
        Binding("end", "go(-1)", "last row", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--head", "rows--cursor"}
    DEFAULT_CSS = """
    Rows { height: 1fr; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
        scrollbar-background: $background; scrollbar-color: $primary; }
    Rows .rows--head { text-style: bold; color: $foreground; background: $panel; }
    Rows .rows--cursor { background: $primary; color: $text; text-style: bold; }
    Rows:ansi .rows--cursor { text-style: reverse; }
    """

    cursor: reactive[int] = reactive(0, repaint=False)
    count: reactive[int] = reactive(0, repaint=False)

    class Chosen(Message):
        """Enter or a click on a row."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class Moved(Message):
        """A person put the cursor on another row."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class HeadClicked(Message):
        """A click on the title of a column."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, columns: Sequence[Column], cells: Cells) -> None:
        super().__init__()
        self.columns = list(columns)
        self.marked = ""  # the column that the rows are sorted by, with its arrow
        self.empty = ""  # what is said where there are no rows
        self._cells = cells
        self._layout: list[tuple[Column, int]] = []

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

    def set_columns(self, columns: Sequence[Column]) -> None:
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

    def action_move(self, by: int) -> None:
        self._move(self.cursor + by)

    def action_page(self, by: int) -> None:
        self._move(self.cursor + by * max(1, self.size.height - 2))

    def action_go(self, row: int) -> None:
        self._move(row if row >= 0 else self.count - 1)

    def _move(self, row: int) -> None:
        if self.count:
            self.go(row)
            self.post_message(self.Moved(self.cursor))

    def action_choose(self) -> None:
        if self.count:
            self.post_message(self.Chosen(self.cursor))

    def go(self, row: int) -> None:
        """Put the cursor on a row and bring it onto the screen."""
        self.cursor = row
        self._reveal()

    def _reveal(self) -> None:
        """Scroll just as far as it takes for the cursor to be seen, below the head."""
        room = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False)

    def on_click(self, event: Click) -> None:
        if event.y == 0:
            at = event.x
            for column, width in self._layout:
                if at < width + GAP:
                    self.post_message(self.HeadClicked(column.key))
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
            return self._strip([self._title(column) for column, _ in self._layout], self._component("rows--head"))
        row = self.scroll_offset.y + y - 1
        if row >= self.count:
            text = plain(self.empty) if not self.count and y == 2 else ""
            return Strip([Segment(fitted(text, self._width), style + STYLES["dim"])], self._width)
        if row == self.cursor and self.has_focus:
            return self._strip(self._visible(row), self._component("rows--cursor"), plain_colours=True)
        return self._strip(self._visible(row), style)

    def _title(self, column: Column) -> Cell:
        return column.title + self.marked[-1] if self.marked[:-1] == column.key else column.title

    def _visible(self, row: int) -> list[Cell]:
        cells = dict(zip((column.key for column in self.columns), self._cells(row), strict=True))
        return [cells[column.key] for column, _ in self._layout]

    def _component(self, name: str) -> Style:
        return self.get_component_rich_style(name)

    def _strip(self, cells: Sequence[Cell], style: Style, *, plain_colours: bool = False) -> Strip:
        """One line. On the cursor's bar the cells keep no colour of their own, which might not be seen there."""
        segments = []
        for cell, (column, width) in zip(cells, self._layout, strict=True):
            text, name = cell if isinstance(cell, tuple) else (cell, "")
            shown = fitted(plain(text), width, column.right, column.both_ends)
            segments.append(Segment(shown, style if plain_colours or not name else style + STYLES[name]))
            segments.append(Segment(" " * GAP, style))
        return Strip(segments).adjust_cell_length(self._width, style)
