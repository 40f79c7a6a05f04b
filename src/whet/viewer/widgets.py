"""What the screens are made of: lines to scroll through, a table of any number of rows, a question.

All text that comes from a file is a line of `display/lines.py`; nothing is ever read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Click, Key, Resize
from textual.geometry import Region, Size, Spacing
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from whet.display.lines import CONSOLE, Column, RowT, fitted, keys_in, layout, plain, styled


def paint(line: Text, width: int, base: Style) -> Strip:
    return Strip(line.render(CONSOLE)).adjust_cell_length(width).apply_style(base)


class Bar(Widget):
    """A few status lines, each cut at the edge of the window."""

    DEFAULT_CSS = "Bar { height: auto; min-height: 1; background: $boost; }"
    lines: Sequence[Text] = ()

    def show(self, *lines: Text) -> None:
        self.refresh(layout=len(lines) != len(self.lines))
        self.lines = lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        return paint(self.lines[y] if y < len(self.lines) else Text(), self.size.width, self.rich_style)


class LineView(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines that scroll up and down, painted when they are seen. Subclasses define what the keys move."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "by(-1)", "up", show=False),
        Binding("down,j", "by(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown,space", "page(1)", "page down", show=False),
        Binding("home", "by(-1_000_000_000)", "top", show=False),
        Binding("end", "by(1_000_000_000)", "end", show=False),
    ]
    DEFAULT_CSS = "LineView { height: 1fr; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1; }"

    @property
    def width(self) -> int:
        """Cells of a line, without the scrollbar; 0 before the first layout."""
        return self.scrollable_content_region.width

    def action_by(self, lines: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + lines, animate=False)

    def action_page(self, pages: int) -> None:
        self.action_by(pages * max(1, self.size.height - 2))


class Document(LineView):
    """A long text, of which some pieces have keys: a click goes to one of them, and so may the keyboard.

    Args:
        make: The lines for a width in cells.
        act: Called with the key of what was clicked.
    """

    def __init__(self, make: Callable[[int], list[Text]], act: Callable[[str], object] = str) -> None:
        super().__init__()
        self.lines: list[Text] = []
        self.rows: dict[str, int] = {}  # by key: the first line it is in
        self.current = ""  # the key of the piece that is marked
        self.reading = -1  # the line of the current match
        self._make, self._act = make, act

    def show(self, *, top: bool = False) -> None:
        """Make the lines again; `top` scrolls to their beginning."""
        self.lines = self._make(self.width) if self.width > 0 else []
        self.rows = {}
        for row, line in enumerate(self.lines):
            for key in keys_in(line):
                self.rows.setdefault(key, row)
        self.virtual_size = Size(self.width, len(self.lines))
        if top:
            self.reading = -1
            self.scroll_to(y=0, animate=False)
        self.refresh()

    def on_resize(self, event: Resize) -> None:
        self.show()

    def reveal(self, row: int) -> None:
        """Scroll to a line that is not visible, a third down from the top."""
        if not self.scroll_offset.y <= row < self.scroll_offset.y + self.size.height:
            self.scroll_to(y=max(0, row - self.size.height // 3), animate=False)
        self.refresh()

    def go(self, key: str) -> None:
        """Mark a piece, and scroll to it."""
        self.current = key
        self.reveal(self.rows.get(key, 0))

    def to_match(self, by: int) -> bool:
        """Go to the next line with a match, or the one before; False where there is none in that direction."""
        ahead = range(self.reading + 1, len(self.lines)) if by > 0 else range(self.reading - 1, -1, -1)
        row = next((row for row in ahead if any(span.style == "match" for span in self.lines[row].spans)), None)
        if row is not None:
            self.reading = row
            self.reveal(row)
        return row is not None

    def on_click(self, event: Click) -> None:
        if key := event.style.meta.get("key"):
            self._act(key)

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        line = self.lines[row].copy() if row < len(self.lines) else Text()
        for span in line.spans[:]:
            if isinstance(span.style, Style) and self.current and span.style.meta.get("key") == self.current:
                line.stylize("current", span.start, span.end)
        base = self.rich_style + Style(bold=True, underline=True) if row == self.reading else self.rich_style
        return paint(line, self.size.width, base)


class Table(LineView, Generic[RowT]):
    """Rows under a head that stays; a row is made when it is painted, so there may be millions. A click chooses a row.

    What the user does is passed on at once, not as a message: until a message arrived, the rows could be others.

    Args:
        columns: All columns; what does not fit into the window is left out, see `layout`.
        row_at: Called for each row that comes onto the screen.
        choose: Called with the row of a click.
        move: Called with the row that the user put the cursor on.
        sort: Called with the column whose title was clicked.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--head", "table--cursor"}
    DEFAULT_CSS = """
    Table .table--head { text-style: bold; color: $foreground; background: $panel; }
    Table .table--cursor { background: $primary; color: $text; text-style: bold; }
    Table:ansi .table--cursor { text-style: reverse; }
    """

    def __init__(
        self,
        columns: Sequence[Column[RowT]],
        row_at: Callable[[int], RowT],
        choose: Callable[[int], object],
        *,
        move: Callable[[int], object] = int,
        sort: Callable[[str], object] = str,
    ) -> None:
        super().__init__()
        self.columns = columns
        self.count = self.cursor = 0
        self.sorted: tuple[str, str] = ("file", "")  # what the rows are sorted by, and the arrow that shows it
        self.empty = ""  # what is said where there are no rows
        self._row_at, self._choose, self._moved, self._sort = row_at, choose, move, sort

    def show(self, count: int, cursor: int) -> None:
        """There are `count` rows now, and any of them may be another than before."""
        self.count = count
        self.virtual_size = Size(max(1, self.width), count + 1)
        self.go(cursor)

    def on_resize(self, event: Resize) -> None:
        self.show(self.count, self.cursor)

    def go(self, row: int) -> None:
        """Put the cursor on a row, and scroll just as far as it takes to be seen below the head."""
        self.cursor = max(0, min(row, self.count - 1))
        self.scroll_to_region(Region(0, self.cursor + 1, 1, 1), spacing=Spacing(top=1), animate=False)
        self.refresh()

    def action_by(self, lines: int) -> None:
        if self.count:
            self.go(self.cursor + lines)
            self._moved(self.cursor)

    def on_click(self, event: Click) -> None:
        row = self.scroll_offset.y + event.y - 1
        if event.y == 0 and (column := event.style.meta.get("sort")):
            self._sort(column)
        elif event.y and row < self.count:
            self.action_by(row - self.cursor)
            self._choose(row)

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y - 1
        if y == 0:
            return paint(self._head(), self.width, self.get_component_rich_style("table--head"))
        if row >= self.count:
            said = styled((self.empty, "dim")) if y == 1 and not self.count else Text()
            return paint(said, self.width, self.rich_style)
        line = self._line(row)
        if row == self.cursor:  # whose bar might hide the cells' own colours
            style = self.get_component_rich_style("table--cursor")
            return Strip([Segment(line.plain, style)]).adjust_cell_length(self.width, style)
        return paint(line, self.width, self.rich_style)

    def _line(self, row: int) -> Text:
        values, line = self._row_at(row), Text(end="")
        for column, width in layout(self.columns, self.width):
            cell = column.cell(values)
            text, style = (cell, "") if isinstance(cell, str) else cell
            line.append(fitted(plain(text), width, right=column.right, both_ends=column.both_ends), style).append(" ")
        return line

    def _head(self) -> Text:
        line = Text(end="")
        for column, width in layout(self.columns, self.width):
            arrow = self.sorted[1] if column.sort == self.sorted[0] else ""
            line.append(
                fitted(column.title + arrow, width, right=column.right) + " ", Style(meta={"sort": column.sort})
            )
        return line


class Prompt(Vertical):
    """A question at the foot of a screen: a line to type, or one of several answers. Escape takes it away."""

    DEFAULT_CSS = """
    Prompt { height: auto; display: none; background: $panel; }
    Prompt OptionList { max-height: 60vh; border: none; }
    """

    _then: Callable[[str], object] | Callable[[int], object] = str

    def compose(self) -> ComposeResult:
        yield Bar()
        yield Input(select_on_focus=False, compact=True)
        yield OptionList(markup=False, compact=True)

    def ask(self, title: str, value: str, then: Callable[[str], object]) -> None:
        """A line of text, with a value to begin with."""
        line = self.query_one(Input)
        line.value, line.cursor_position = value, len(value)
        self._open(title, line, then)

    def choose(self, title: str, answers: Sequence[Text], current: int, then: Callable[[int], object]) -> None:
        """The index of one of the answers."""
        options = self.query_one(OptionList)
        options.clear_options().add_options(Option(answer) for answer in answers)
        options.highlighted = current
        self._open(title, options, then)

    def _open(self, title: str, field: Widget, then: Callable[[str], object] | Callable[[int], object]) -> None:
        self._then = then
        self.query_one(Bar).show(styled((f" {title}", "bold")))
        for one in (self.query_one(Input), self.query_one(OptionList)):
            one.display = one is field
        self.display = True
        self.screen.set_focus(field)

    def close(self) -> None:
        self.display = False
        self.screen.set_focus(self.screen.query_one(LineView))

    def take(self, event: Key) -> bool:
        """A key that was typed before the line had the focus; returns whether the line took it."""
        line = self.query_one(Input)
        if line.display and event.is_printable and event.character is not None:
            line.insert_text_at_cursor(event.character)
            return True
        return False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._answer(event.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._answer(event.option_index)

    def _answer(self, answer: object) -> None:
        self.close()
        self._then(answer)  # type: ignore[arg-type]
