"""`whet view`: the application, the list of runs, the list of a run's rollouts, and the function behind the command."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widget import Widget

from whet.display.lines import Column, Part, styled
from whet.errors import WhetError
from whet.records.heads import Head, SortColumn
from whet.records.listing import COLUMNS, SORTED_BY, Choosable, Listing, shown_columns
from whet.records.rollout_text import number
from whet.records.sources import RunSource, run_folders, runs_below
from whet.records.store import Store, open_store
from whet.viewer.screens import ListingScreen, ViewerScreen
from whet.viewer.widgets import Table

AGAIN = 3.0  # seconds between two looks at the folders
STATES = {"finished": "good", "failed": "bad", "interrupted": "bad"}
RUN_COLUMNS: list[Column[RunSource]] = [
    Column("name", 16, lambda run: (run.path.absolute().name, "name"), stretch=True, both_ends=True),
    Column("kind", 10, lambda run: run.kind, rank=3),
    Column("environment", 14, lambda run: run.environment or "unknown", rank=1, stretch=True),
    Column("model", 16, lambda run: run.model, rank=2),
    Column("reward", 7, lambda run: number(run.reward), rank=1, right=True),
    Column("rollouts", 9, lambda run: "" if run.count is None else f"{run.count:,}", rank=5, right=True),
    Column("state", 11, lambda run: (run.note or run.state, STATES.get(run.note or run.state, "middling")), rank=2),
    Column("last written", 16, lambda run: (run.date[:16].replace("T", " "), "dim"), rank=4),
]

TICK = 0.2  # seconds between two looks at how far the index is
REST = 10  # times as long as a list took, before the next one is loaded for a file that grows

SORTS: dict[str, SortColumn] = {
    "R": "reward",
    "E": "error",
    "S": "stop_condition",
    "V": "environment",
    "A": "advantage",
    "T": "output_tokens",
    "D": "duration",
    "P": "example",
}
LAYOUT = {
    "#": (7, 9), "step": (11, 3), "sampling": (13, 5), "environment": (14, 5), "candidate": (12, 2), "task": (6, 1),
    "nth": (3, 7), "reward": (8, 0), "advantage": (10, 2), "question": (14, 0), "ended": (17, 3), "turns": (6, 6),
    "tokens": (7, 6), "time": (7, 7),
}  # fmt: skip
"""Of a column its width, and its rank: those of the highest rank are left out first."""
LEFT = ("step", "sampling", "environment", "candidate", "question", "ended")


def table_columns(listing: Listing) -> list[Column[Head]]:
    """A mark for what was searched for, and the columns that say something for this run."""

    def match_mark(head: Head) -> Part:
        return "•" if listing.search is not None and head.number in listing.search.matches else ""

    columns: list[Column[Head]] = [Column("", 1, match_mark)]
    for title in shown_columns(listing.store.source.kind, listing.variety):
        width, rank = LAYOUT[title]
        wide = title == "question" or (title == "task" and listing.store.source.kind == "search")
        cell = partial(_cell, listing, title)
        columns.append(Column(title, width, cell, rank, title not in LEFT, wide, wide, SORTED_BY.get(title)))
    return columns


def _cell(listing: Listing, title: str, head: Head) -> Part:
    return COLUMNS[title](head, listing.passed)


class RolloutsScreen(ListingScreen):
    """Every rollout of one run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open('rollout')", "open"),
        Binding("r", "change('next_reward_filter')", "reward"),
        Binding("e", "change('next_error_filter')", "errors"),
        Binding("s", "pick('stop_condition')", "stop"),
        Binding("v", "pick('environment')", "environment"),
        Binding("p", "pick('part')", "step"),
        Binding("m", "change('toggle_matches')", "only found"),
        Binding("o", "change('toggle_group')", "one group"),
        Binding("c", "change('clear')", "all again"),
        *(
            Binding(key, f"change('sort_by', '{by}')", f"sort by {by.replace('_', ' ')}", show=False)
            for key, by in SORTS.items()
        ),
    ]

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self._loading = self._again = self._grown = False
        self._rested = 0.0  # when the next list may be loaded because the file has grown

    def body(self) -> Widget:
        columns, sort = table_columns(self.listing), partial(self.action_change, "sort_by")
        return Table(columns, self._row_at, self._choose, move=self._move, sort=sort)

    def on_mount(self) -> None:
        self._show()
        self.listing.store.start()
        self.reload()
        self.set_interval(TICK, self._tick)

    def on_unmount(self) -> None:
        if self.listing.search is not None:
            self.listing.search.cancelled = True
        self.listing.store.close()

    def on_screen_resume(self) -> None:
        """Back from a rollout: the cursor moves to the one that was shown last."""
        self.table.go(self.listing.position())

    @property
    def table(self) -> Table[Head]:
        return self.query_one(Table)

    # Updates.

    def _tick(self) -> None:
        before, now = self.listing.progress, self.listing.store.poll()
        self.listing.progress = now
        if now.generation != before.generation:
            self._start_again()
        self._grown |= now.generation != before.generation or now.rollouts != before.rollouts
        if self._grown and not self._loading and time.monotonic() >= self._rested:
            self._grown = False
            self.reload()
        self.show_status()

    def _start_again(self) -> None:
        """The file was replaced or truncated, so all numbers are void: return to this screen, and to its beginning."""
        while self.app.screen is not self:
            self.app.pop_screen()
        self.stop_search()
        self.listing.start_again()
        self._show()
        self.say("the file was replaced: it is read from its beginning")

    def reload(self) -> None:
        """Load the list again in a thread; calls while it is being loaded are merged into one further load."""
        self._again = True
        if not self._loading:
            self._loading = True
            self.begin(self._load, "load")

    async def _load(self) -> None:
        try:
            while self._again:
                self._again = False
                begun, generation = time.monotonic(), self.listing.progress.generation
                loaded = await asyncio.to_thread(self.listing.load)
                # The loaded list is of a file that was replaced, or in an order that was changed meanwhile.
                self._again |= generation != self.listing.progress.generation
                if not self._again:
                    self.listing.take(loaded)
                    self._rested = time.monotonic() + REST * (time.monotonic() - begun)
                    self._show()
        finally:
            self._loading = False

    def _show(self) -> None:
        self.table.columns = table_columns(self.listing)
        nothing = "No rollout fits the filter; c shows all again."
        self.table.empty = nothing if self.listing.narrowed else "No rollout yet."
        self.table.sorted = (self.listing.sort.column, self.listing.arrow)
        self.table.show(len(self.listing.heads), self.listing.position())
        self.show_status()

    def show_status(self) -> None:
        self.status(*(styled(" ", *line) for line in self.listing.status()))

    # Actions.

    def _move(self, row: int) -> None:
        self.listing.number = self.listing.heads.numbers[row]

    def _choose(self, row: int) -> None:
        self.action_open("rollout")

    def _row_at(self, row: int) -> Head:
        return self.listing.head(self.listing.heads.numbers[row])

    def action_change(self, method: str, *arguments: Any) -> None:
        """Change the filter or the order by a method of the listing."""
        getattr(self.listing, method)(*arguments)
        self.reload()

    def action_pick(self, column: Choosable) -> None:
        """Ask for one value of a column; of a search for prompts, its candidates take the place of steps."""
        if column == "part" and self.listing.store.source.kind == "search":
            column = "candidate"
        options = self.listing.options(column)
        now = getattr(self.listing.filter, column)
        current = next((at for at, (value, _) in enumerate(options) if value == now), 0)
        answers = [styled(*parts) for _, parts in options]
        title = f"Only one {column.replace('_', ' ')}"
        self.prompt.choose(title, answers, current, lambda at: self.action_change("only", column, options[at][0]))

    def exported(self) -> Sequence[int]:
        return self.listing.heads.numbers

    def shown_match(self) -> None:
        self.table.go(self.listing.position())
        self.show_status()


class RunsScreen(ViewerScreen):
    """Every run below some folders, the last written first; the list is updated by itself."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open"),
        Binding("slash", "narrow", "only runs with ..."),
    ]

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self.folders = folders
        self.all: list[RunSource] = []
        self.shown: list[RunSource] = []
        self._wanted = ""

    def body(self) -> Widget:
        return Table(RUN_COLUMNS, lambda row: self.shown[row], self._open)

    def on_mount(self) -> None:
        self.status(styled((" Runs", "bold"), ("  looking ...", "dim")))
        self.begin(self._keep_looking, "look")

    async def _keep_looking(self) -> None:
        while True:
            if self.is_current:
                self.all = await asyncio.to_thread(runs_below, self.folders)
                self._show()
            await asyncio.sleep(AGAIN)

    def _show(self) -> None:
        table, wanted = self.query_one(Table), self._wanted.casefold()
        chosen = self.shown[table.cursor].path if self.shown else None
        self.shown = [run for run in self.all if wanted in f"{run.environment} {run.model} {run.path}".casefold()]
        below = ", ".join(map(str, self.folders))
        table.empty = f"No run below {below}. `whet eval run`, `whet train run` and `whet gepa run` make them."
        narrowed = f"  with {self._wanted!r}" if wanted else ""
        self.status(styled((" Runs", "bold"), f"  {len(self.shown)} below {below}{narrowed}"))
        table.show(len(self.shown), next((at for at, run in enumerate(self.shown) if run.path == chosen), 0))

    def action_open(self) -> None:
        if self.shown:
            self._open(self.query_one(Table).cursor)

    def _open(self, row: int) -> None:
        try:
            self.app.push_screen(RolloutsScreen(Listing(open_store(self.shown[row].path))))
        except WhetError as error:
            self.say(str(error), wrong=True)

    def action_narrow(self) -> None:
        def narrow(text: str) -> None:
            self._wanted = text.strip()
            self._show()

        self.prompt.ask("Only runs with this in their environment, model or directory", self._wanted, narrow)


class Viewer(App[None]):
    """The application. A store is closed when its screen is left."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "interrupt", show=False, priority=True)]

    def __init__(self, target: Store | Sequence[Path]) -> None:
        # With NO_COLOR the terminal's own colours: Textual would turn those of its theme into greys.
        plain = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if plain else None)
        if plain:
            self.theme = "ansi-dark"
        self.target = target

    def on_mount(self) -> None:
        target = self.target
        self.push_screen(RolloutsScreen(Listing(target)) if isinstance(target, Store) else RunsScreen(target))

    def on_key(self, event: Key) -> None:
        """Text that was typed before a question got the focus arrives here."""
        if isinstance(self.screen, ViewerScreen) and self.screen.prompt.display and self.screen.prompt.take(event):
            event.prevent_default()

    def action_interrupt(self) -> None:
        self.exit(return_code=130)


def view(path: Path | None) -> int:
    """Run the viewer on a run, or on the runs below a folder; returns the exit code.

    Without a path: the evaluations and runs of this folder. Raises `RunError` where there is nothing to show.
    """
    app = Viewer(find_target(path))
    app.run()
    return app.return_code or 0


def find_target(path: Path | None) -> Store | list[Path]:
    """What `whet view PATH` shows: one run, opened, or the folders to look below."""
    folders = run_folders(path)
    return open_store(path) if path is not None and folders is None else folders or []
