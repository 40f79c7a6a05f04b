"""A table of any number of rows, of which only those on the screen are made; and the columns of a list of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from whet.system.terminal import duration
from whet.viewer.heads import Head, SortColumn, Variety
from whet.viewer.widgets.lines import STYLES, fitted, plain
from whet.viewer.widgets.panes import LineView

GAP = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Of those that do not all fit, the ones with the highest `rank` are left out."""

    key: str
    title: str
    width: int
    rank: int = 0
    right: bool = False
    stretch: bool = False  # takes the room that is left; `width` is its least
    both_ends: bool = False  # of a text that is too long, its beginning and its end are shown


def layout(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit into `width` cells, in their order, each with its width."""
    kept = list(columns)
    while len(kept) > 1 and _needed(kept) > width:
        kept.remove(max(reversed(kept), key=lambda column: column.rank))
    spare = max(0, width - _needed(kept))
    stretched = [column for column in kept if column.stretch]
    shares = {
        column.key: spare // len(stretched) + (at < spare % len(stretched)) for at, column in enumerate(stretched)
    }
    return [(column, min(width, column.width + shares.get(column.key, 0))) for column in kept]


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width + GAP for column in columns) - GAP


Cell = str | tuple[str, str]
"""Text, or text and the name of its style (`lines.STYLES`). It is escaped here."""
Cells = Callable[[int], Sequence[Cell]]
"""The cells of a row, one for each column."""


class TableView(LineView):
    """TableView under a head that stays. A click chooses a row; so does the screen's Enter, through `action_choose`.

    Args:
        columns: All columns; what does not fit into the window is left out, see `layout`.
        cells: Called for each row that comes onto the screen.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--head", "table--cursor"}
    DEFAULT_CSS = """
    TableView .table--head { text-style: bold; color: $foreground; background: $panel; }
    TableView .table--cursor { background: $primary; color: $text; text-style: bold; }
    TableView:ansi .table--cursor { text-style: reverse; }
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

    def action_by(self, lines: int) -> None:
        self._move(self.cursor + lines)

    def action_top(self) -> None:
        self._move(0)

    def action_bottom(self) -> None:
        self._move(self.count - 1)

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
            return self._strip([self._title(column) for column, _ in self._layout], self._component("table--head"))
        row = self.scroll_offset.y + y - 1
        if row >= self.count:
            text = plain(self.empty) if not self.count and y == 2 else ""
            return Strip([Segment(fitted(text, self._width), style + STYLES["dim"])], self._width)
        if row == self.cursor and self.has_focus:
            return self._strip(self._visible(row), self._component("table--cursor"), plain_colours=True)
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


EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 5

SORTS: dict[str, SortColumn] = {
    "number": "file",
    "part": "file",
    "environment": "environment",
    "task": "example",
    "reward": "reward",
    "bar": "reward",
    "advantage": "advantage",
    "error": "error",
    "stop": "stop_condition",
    "tokens": "output_tokens",
    "turns": "turns",
    "time": "duration",
}
"""What a click on the title of a column sorts by."""


def rollout_columns(kind: str, variety: Variety) -> list[Column]:
    """The columns for an evaluation, a run or a search; those that would say nothing are left out."""
    columns = [
        Column("mark", "", 1),
        Column("number", "#", 6, rank=9, right=True),
        Column("part", "step", 11, rank=3),
        Column("sampling", "sampling", 13, rank=5),
        Column("environment", "environment", 14, rank=5),
        Column("candidate", "candidate", 12, rank=2),
        Column("task", "task", 20 if kind == "search" else 6, rank=1, right=True),
        Column("place", "nth", 3, rank=7, right=True),
        Column("reward", "reward", 7, right=True),
        Column("bar", "", BAR, rank=8),
        Column("advantage", "advant.", 7, rank=2, right=True),
        Column("question", "question", 14, stretch=True, both_ends=True),
        Column("stop", "stop condition", 17, rank=4),
        Column("error", "error", 12, rank=3),
        Column("turns", "turns", 5, rank=6, right=True),
        Column("tokens", "tokens", 6, rank=6, right=True),
        Column("time", "time", 6, rank=7, right=True),
    ]
    without = set() if kind == "training" else {"part", "advantage"}
    if kind != "search":
        without.add("candidate")
    if variety.samplings < 2:
        without.add("sampling")
    if variety.environments < 2:
        without.add("environment")
    if not variety.errors:
        without.add("error")
    return [column for column in columns if column.key not in without]


def rollout_cells(head: Head, columns: list[Column], *, passed: float, found: bool, candidate: str = "") -> list[Cell]:
    """The cells of one rollout; `candidate` is the name of its candidate."""
    if head.problem is not None:
        damaged: dict[str, Cell] = {"number": str(head.number + 1), "question": (head.problem, "bad")}
        return [damaged.get(column.key, "") for column in columns]
    style = reward_style(head.reward, passed)
    cells: dict[str, Cell] = {
        "mark": ("•", "middling") if found else "",
        "number": (str(head.number + 1), "dim"),
        "part": part_name(head),
        "sampling": head.sampling or "",
        "environment": head.environment,
        "candidate": (candidate, candidate_style(candidate)),
        "task": "" if head.example_id is None else str(head.example_id),
        "place": (str(head.place + 1), "dim"),
        "reward": (number(head.reward), style),
        "bar": (reward_bar(head.reward), style),
        "advantage": (signed(head.advantage), signed_style(head.advantage)),
        "question": head.question,
        "stop": (head.stop_condition or "", "middling" if head.truncated else "dim"),
        "error": (head.error or "", "bad"),
        "turns": str(head.turns),
        "tokens": "" if head.output_tokens is None else f"{head.output_tokens:.0f}",
        "time": seconds(head.duration),
    }
    return [cells[column.key] for column in columns]


def candidate_style(name: str) -> str:
    return "good" if name.endswith("accepted") else "dim" if name.endswith("rejected") else ""


def part_name(head: Head, label: str = "") -> str:
    """Where in a run a rollout belongs: the step, after `label`, or which evaluation."""
    if head.part.startswith("step_") and head.step is not None:
        return f"{label}{head.step}"
    return head.part.replace("_", " ")


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}" if abs(value) < 1000 else f"{value:+.2g}"


def signed_style(value: float | None) -> str:
    return "" if not value else "good" if value > 0 else "bad"


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 10 else duration(value)


def reward_style(reward: float | None, passed: float) -> str:
    if reward is None:
        return "dim"
    return "good" if reward >= passed else "middling" if reward > 0 else "bad"


def reward_bar(reward: float | None, width: int = BAR) -> str:
    """A reward between 0 and 1 as a bar of blocks; anything above fills it."""
    if reward is None or not reward > 0:
        return ""
    eighths = round(min(reward, 1.0) * width * 8)
    return EIGHTHS[8] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
