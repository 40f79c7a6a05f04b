"""Shows a search while it works: a live view in a terminal, plain lines elsewhere.

Plain lines are few enough for a log: one at the start, one for each candidate that was decided on, one for each tenth
of the budget (or a minute, where that takes longer), every note, and the confirmation. What the log of an earlier
process answers is one line.
"""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from whet.display.text import number
from whet.gepa.live.progress import SearchProgress
from whet.gepa.live.views import (
    COMPARISONS,
    candidate_reason,
    confirmation_line,
    last_view,
    live_view,
    moved,
    progress_line,
)
from whet.gepa.observers import Forwarder
from whet.gepa.types import CandidateRecord, Confirmation, Scored, SearchObserver, SearchPlan
from whet.records.live import Output, RunView
from whet.system.terminal import safe_text

KEYS = "←/→ candidate   d compare with seed, whole   space scroll   q stop"
SCROLL_LINES = 5


def open_view(title: str, *, plain: bool = False) -> SearchObserver:
    """The view of a search, on standard error. `title` says what is optimised: `reverse-text with whet/tiny`."""
    return SearchView(title, Output.find(plain=plain))


class SearchView(RunView, Forwarder):
    """An observer that shows a search, from the plan on."""

    stop_question = "Stop the search? q again stops it (it can be resumed), any other key continues."

    def __init__(self, title: str, output: Output) -> None:
        super().__init__(output)
        self._title = title
        self._progress = SearchProgress(title, output.clock)
        self._unsaid: list[str] = []  # what was decided on by what the log answered
        self._replayed = 0
        self._selected: int | None = None  # None: the candidate that is worked on
        self._comparison = 0
        self._scrolled = 0

    @property
    def keys(self) -> str:
        return KEYS

    def send(self, event: str, *args: Any) -> None:
        with self.lock:
            getattr(self._progress, event)(*args)
        self.changed()

    def planned(self, plan: SearchPlan) -> None:
        super().planned(plan)
        self.line(f"{safe_text(self._title)}: at most {plan.max_calls} calls")
        self.begin()

    def finished(self, scored: Scored, spent: int, cost: float | None, replayed: bool = False) -> None:
        super().finished(scored, spent, cost, replayed)
        if self.live:
            return
        if replayed:
            self._replayed += 1
            return
        self._say_what_the_log_had()
        if self.due(self._tenth):
            self.print(progress_line(self._progress))

    def decided(self, record: CandidateRecord) -> None:
        super().decided(record)
        line = f"candidate {record.number}: {safe_text(candidate_reason(record))}"
        if record.val_mean is not None:
            line += f" ({number(record.val_mean)} on validation)"
        if self._progress.replaying:
            self._unsaid.append(line)
        else:
            self._say_what_the_log_had()
            self.line(line)

    def confirmed(self, confirmation: Confirmation) -> None:
        super().confirmed(confirmation)
        self._say_what_the_log_had()
        self.line(f"confirmed: {confirmation_line(confirmation)}")

    def close(self) -> None:
        self._say_what_the_log_had()
        super().close()

    @property
    def _tenth(self) -> int:
        """How many tenths of the budget are spent."""
        return 10 * self._progress.spent // max(1, self._progress.max_calls)

    def _say_what_the_log_had(self) -> None:
        """One line for all of it, once."""
        if not self._replayed:
            return
        self.passed(self._tenth)
        candidates, self._unsaid = len(self._unsaid), []
        self.line(f"from the log: {self._replayed} calls, {candidates} candidates decided on, not paid for again")
        self._replayed = 0

    def draw(self, width: int, height: int, footer: str) -> RenderableType:
        if self.closed:
            return last_view(self._progress, width, height)
        return live_view(
            self._progress,
            width,
            height,
            selected=self._selected,
            comparison=COMPARISONS[self._comparison],
            scrolled=self._scrolled,
            footer=footer,
            sampling=self.sampling(),
        )

    def move(self, by: int) -> None:
        self._selected = moved(self._progress, self._selected, by)
        self._scrolled = 0

    def key(self, key: str) -> None:
        if key == "d":
            self._comparison = (self._comparison + 1) % len(COMPARISONS)
            self._scrolled = 0
        elif key in (" ", "b"):
            self._scrolled = max(0, self._scrolled + (SCROLL_LINES if key == " " else -SCROLL_LINES))
