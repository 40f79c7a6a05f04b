"""The list of runs: evaluations, training, searches for prompts, the last written first; it is updated by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from whet.errors import WhetError
from whet.records.rollout_text import number
from whet.records.sources import RunSource, find_sources
from whet.records.store import open_store
from whet.viewer.listing import Listing
from whet.viewer.screens.base import LAST_KEYS, ViewerScreen
from whet.viewer.screens.dialogs import Ask
from whet.viewer.widgets.lines import line
from whet.viewer.widgets.panes import Bar, Keys
from whet.viewer.widgets.table import Cell, Column, TableView

AGAIN = 3.0  # seconds between two looks at the folders

STATES = {"finished": "good", "failed": "bad", "interrupted": "bad"}
COLUMNS: tuple[Column[RunSource], ...] = (
    Column("name", 16, lambda run: (run.path.absolute().name, "name"), stretch=True, both_ends=True),
    Column("kind", 10, lambda run: run.kind, rank=3),
    Column("environment", 14, lambda run: run.environment or "unknown", stretch=True, rank=1),
    Column("model", 16, lambda run: run.model, rank=2),
    Column("reward", 7, lambda run: number(run.reward), rank=1, right=True),
    Column("rollouts", 9, lambda run: "" if run.count is None else f"{run.count:,}", rank=5, right=True),
    Column("state", 11, lambda run: (run.note, "bad") if run.note else _state(run), rank=2),
    Column("last written", 16, lambda run: (run.date[:16].replace("T", " "), "dim"), rank=4),
    Column("directory", 30, lambda run: (str(run.path), "dim"), rank=6),
)


def _state(run: RunSource) -> Cell:
    return run.state, STATES.get(run.state, "middling")


class RunsScreen(ViewerScreen):
    """Every run below some folders."""

    NAME: ClassVar[str] = "Runs"
    HELP: ClassVar[str] = """
Evaluations, training runs and searches for prompts, the one that was written last first. The list grows by itself.

Enter   the rollouts of a run
/       only runs whose environment, model or directory has this text in it; nothing shows all again
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open"),
        Binding("slash", "narrow", "only runs with ..."),
        *LAST_KEYS,
    ]

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self.folders = list(folders)
        self.all: list[RunSource] = []
        self.shown: list[RunSource] = []
        self._wanted = ""
        self._looked = False

    def compose(self) -> ComposeResult:
        yield Bar([line((" Runs", "bold"), ("  looking ...", "dim"))])
        yield TableView(COLUMNS, lambda row: self.shown[row], self._open)
        yield Keys()

    def on_mount(self) -> None:
        self.query_one(TableView).focus()
        self.begin(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            if self.is_current or not self._looked:
                self.all = await asyncio.to_thread(self._look)
                self._looked = True
                self._show()
            await asyncio.sleep(AGAIN)

    def _look(self) -> list[RunSource]:
        """What is below the folders now; one that was removed meanwhile has nothing."""
        found = [source for folder in self.folders if folder.is_dir() for source in find_sources(folder)]
        return sorted(found, key=lambda source: source.date, reverse=True)

    def _show(self) -> None:
        rows = self.query_one(TableView)
        chosen = self.shown[rows.cursor].path if self.shown else None
        wanted = self._wanted.casefold()
        self.shown = [run for run in self.all if wanted in f"{run.environment} {run.model} {run.path}".casefold()]
        at = next((place for place, run in enumerate(self.shown) if run.path == chosen), 0)
        below = ", ".join(map(str, self.folders))
        rows.empty = f"No run below {below}. `whet eval run`, `whet train run` and `whet gepa run` make them."
        narrowed = f"  with {self._wanted!r}" if self._wanted else ""
        self.query_one(Bar).show([line((" Runs", "bold"), f"  {len(self.shown)} below {below}{narrowed}")])
        rows.show(len(self.shown), at)

    def action_open(self) -> None:
        self.query_one(TableView).action_choose()

    def _open(self, row: int) -> None:
        try:
            self.viewer.open_screen("rollouts", Listing(open_store(self.shown[row].path)))
        except WhetError as error:
            self.say(str(error), wrong=True)

    def action_narrow(self) -> None:
        def narrow(text: str | None) -> None:
            if text is not None:
                self._wanted = text.strip()
                self._show()

        self.app.push_screen(Ask("Only runs with this in their environment, model or directory", self._wanted), narrow)
