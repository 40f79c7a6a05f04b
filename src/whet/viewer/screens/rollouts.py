"""The rollouts of a run: a table of any length that grows with the file; single keys filter, sort and search."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from whet.records.heads import SortColumn
from whet.viewer.listing import Choosable, Listing
from whet.viewer.screens.base import LAST_KEYS, SearchingScreen
from whet.viewer.screens.dialogs import Choose
from whet.viewer.widgets.lines import StyledLine, line
from whet.viewer.widgets.panes import Bar, Keys
from whet.viewer.widgets.rollouts import RolloutRow, rollout_columns
from whet.viewer.widgets.table import TableView

TICK = 0.2  # seconds between two looks at how far the index is
REST = 10  # times as long as a list took, before the next one is loaded for a file that grows

QUESTIONS: dict[Choosable, str] = {
    "stop_condition": "Only rollouts that stopped by",
    "environment": "Only rollouts of",
    "candidate": "Only rollouts of candidate",
    "part": "Only rollouts of",
}
SORT_NAMES = {"example": "task", "stop_condition": "stop", "output_tokens": "tokens", "duration": "time"}
ARROWS = {False: "↑", True: "↓"}


class RolloutsScreen(SearchingScreen):
    """Every rollout of one run."""

    NAME: ClassVar[str] = "Rollouts"
    HELP: ClassVar[str] = """
One row for each rollout, as in the file until it is sorted. New rollouts appear while a run writes them.

Enter   read the rollout
g       all rollouts of its group, side by side
t       its tokens

/       search in messages, reasoning, tool calls, answers and errors; Esc stops it
n N     next and previous rollout that was found
m       only what was found, and all again

r       all rewards, then only those that passed, then only those that did not
e       all, then only rollouts with an error, then only those without
s v p   only one stop condition, one environment, one step or evaluation (of a search: one candidate)
o       only the group of this rollout
c       everything again, in the file's order

R E S V A T D P   sort by reward, error, stop condition, environment, advantage, tokens, duration, task;
                  once more turns the order round, and once more takes it away. A click on a title does the same.

y x     copy this rollout, export it or the list
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open('rollout')", "open"),
        Binding("slash", "search", "search"),
        Binding("n", "match(1)", "next"),
        Binding("N", "match(-1)", "previous"),
        Binding("m", "found", "only found"),
        Binding("r", "reward", "reward"),
        Binding("e", "error", "errors"),
        Binding("s", "pick('stop_condition')", "stop"),
        Binding("v", "pick('environment')", "environment"),
        Binding("p", "pick('part')", "step"),
        Binding("p", "pick('candidate')", "candidate"),
        Binding("o", "group_only", "one group"),
        Binding("c", "clear", "clear"),
        Binding("R", "sort('reward')", "sort: reward"),
        Binding("E", "sort('error')", "error"),
        Binding("S", "sort('stop_condition')", "stop"),
        Binding("V", "sort('environment')", "env."),
        Binding("A", "sort('advantage')", "advantage"),
        Binding("T", "sort('output_tokens')", "tokens"),
        Binding("D", "sort('duration')", "duration"),
        Binding("P", "sort('example')", "task"),
        Binding("g", "open('group')", "group"),
        Binding("t", "open('tokens')", "tokens"),
        Binding("y", "copy", "copy"),
        Binding("x", "export", "export"),
        Binding("escape", "stop_or_back", "back"),
        *LAST_KEYS,
    ]

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self._shown_variety = listing.variety
        self._loading = False
        self._again = False
        self._grown = False
        self._rested = 0.0  # when the next list may be loaded because the file has grown

    def compose(self) -> ComposeResult:
        yield Bar(self._status())
        columns = rollout_columns(self.listing.store.source.kind, self.listing.variety)
        yield TableView(columns, self._row_at, self._choose, move=self._move, sort=self.action_sort)
        yield Keys()

    def on_mount(self) -> None:
        rows = self.query_one(TableView)
        rows.focus()
        rows.show(len(self.listing.heads))
        self.listing.store.start()
        self.reload()
        self.set_interval(TICK, self._tick)

    def on_unmount(self) -> None:
        if self.listing.search is not None:
            self.listing.search.cancelled = True
        self.listing.store.close()

    def on_screen_resume(self) -> None:
        """Back from a rollout: the cursor moves to the one that was shown last."""
        rows = self.query_one(TableView)
        if rows.count:
            rows.go(self.listing.position())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        kind = self.listing.store.source.kind
        training = kind == "training"
        if action == "pick" and parameters == ("part",):
            return training
        if action == "pick" and parameters == ("candidate",):
            return kind == "search"
        if action == "sort" and parameters == ("advantage",):
            return training
        if action in ("pick", "sort") and parameters == ("environment",):
            return self.listing.variety.environments > 1
        if action in ("match", "found"):
            return self.listing.search is not None
        return True

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
        self.query_one(TableView).show(len(self.listing.heads), 0)
        self.say("the file was replaced: it is read from its beginning")

    def reload(self) -> None:
        """Load the list again in a thread; calls while it is being loaded are merged into one further load."""
        self._again = True
        if not self._loading:
            self._loading = True
            self.begin(self._load())

    async def _load(self) -> None:
        try:
            while self._again:
                self._again = False
                begun, generation = time.monotonic(), self.listing.progress.generation
                loaded = await asyncio.to_thread(self.listing.load)
                # The loaded list is of a file that was replaced, or in an order that was changed meanwhile.
                self._again |= generation != self.listing.progress.generation
                if self._again:
                    continue
                self.listing.take(loaded)
                self._rested = time.monotonic() + REST * (time.monotonic() - begun)
                self._show()
        finally:
            self._loading = False

    def _show(self) -> None:
        rows = self.query_one(TableView)
        if self._shown_variety != self.listing.variety:
            self._shown_variety = self.listing.variety
            rows.set_columns(rollout_columns(self.listing.store.source.kind, self.listing.variety))
            self.refresh_bindings()
        rows.empty = "No rollout fits the filter; c shows all again." if self.listing.narrowed else "No rollout yet."
        sort = self.listing.sort
        rows.sorted = (sort.column, ARROWS[sort.descending]) if sort.column != "file" else None
        rows.show(len(self.listing.heads), self.listing.position())
        self.show_status()

    def _row_at(self, row: int) -> RolloutRow:
        head, search = self.listing.heads[row], self.listing.search
        found = search is not None and head.number in search.found
        return RolloutRow(head, self.listing.passed, found, self.listing.candidate(head.candidate))

    # Status lines.

    def show_status(self) -> None:
        self.query_one(Bar).show(self._status())

    def _status(self) -> list[StyledLine]:
        source = self.listing.store.source
        model = f" with {source.model}" if source.model else ""
        head = line((f" {source.environment or 'rollouts'}", "bold"), model, (f"  {source.path}", "dim"))
        return [head, self._counted(), *self._chosen()]

    def _counted(self) -> StyledLine:
        listing, progress = self.listing, self.listing.progress
        parts: list[str | tuple[object, str]] = [f" {len(listing.heads):,}"]
        parts.append(f" of {progress.rollouts:,} rollouts" if listing.narrowed else " rollouts")
        totals = listing.totals
        if totals is not None:
            if totals.mean_reward is not None:
                parts += [", reward ", (f"{totals.mean_reward:.3f}", "bold")]
            if totals.failed:
                parts += [", ", (f"{totals.failed:,} failed", "bad")]
            if totals.truncated:
                parts += [", ", (f"{totals.truncated:,} truncated", "middling")]
        if progress.damaged:
            parts += [", ", (f"{progress.damaged:,} lines are no rollouts", "bad")]
        if progress.failure:
            parts += ["  ", (progress.failure, "bad")]
        elif not progress.complete:
            share = progress.bytes_done / max(1, progress.bytes_total)
            parts += ["  ", (f"reading the file: {share:.0%}", "middling")]
        return line(*parts)

    def _chosen(self) -> list[StyledLine]:
        parts: list[str | tuple[object, str]] = []
        for key, text in self.listing.filters():
            parts += [(f" {key}", "bold"), f" {text} "]
        sort = self.listing.sort
        if sort.column != "file":
            title = SORT_NAMES.get(sort.column, sort.column)
            parts += [(" sorted", "bold"), f" by {title} {ARROWS[sort.descending]} "]
        lines = [line(*parts)] if parts else []
        return [*lines, *self.search_status()]

    # Actions.

    def _move(self, row: int) -> None:
        self.listing.number = self.listing.heads.numbers[row]

    def _choose(self, row: int) -> None:
        self._move(row)
        self.action_open("rollout")

    def action_sort(self, column: SortColumn) -> None:
        self.listing.sort_by(column)
        self.reload()

    def action_reward(self) -> None:
        self.listing.next_reward_filter()
        self.reload()

    def action_error(self) -> None:
        self.listing.next_error_filter()
        self.reload()

    def action_group_only(self) -> None:
        if self.listing.number is not None:
            self.listing.toggle_group(self.listing.number)
            self.reload()

    def action_found(self) -> None:
        self.listing.toggle_found()
        self.reload()

    def action_clear(self) -> None:
        self.listing.clear()
        self.reload()

    def action_pick(self, column: Choosable) -> None:
        counts = self.listing.choices(column)
        values = [None, *counts]
        now = getattr(self.listing.filter, column)

        def pick(answer: int | None) -> None:
            if answer is not None:
                self.listing.only(column, values[answer])
                self.reload()

        called = self.listing.candidate if column == "candidate" else str
        answers = [("all", ""), *((called(value) or "(none)", f"{count:,}") for value, count in counts.items())]
        current = values.index(now) if now in values else 0
        self.app.push_screen(Choose(QUESTIONS[column], answers, current), pick)

    def shown_match(self, number: int) -> None:
        self.query_one(TableView).go(self.listing.position())
