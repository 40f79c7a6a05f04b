"""The progress of a search as plain lines, few enough for a log.

One at the start, one for each candidate that was decided on, one for each tenth of the budget (or a minute, where that
takes longer), every note, and the confirmation. What the log of an earlier process answers is not said again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from whet.display.text import number
from whet.gepa.live.progress import SearchFacts, SearchProgress
from whet.gepa.live.views import best_line, candidate_reason, confirmation_line, phase_line
from whet.gepa.types import CandidateRecord, Confirmation, Phase, Scored, SearchPlan
from whet.system.terminal import duration, safe_text

SECONDS_BETWEEN = 60.0


class SearchPlainLines:
    """An observer that prints to `console`; `clock` is in seconds and only ever compared with itself."""

    def __init__(self, title: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._title, self._clock = title, clock
        self._progress = SearchProgress(title, clock)
        self._tenth = 0
        self._printed = clock()  # when the last line was
        self._unsaid: list[str] = []  # what was decided on by what the log answered
        self._replayed = 0

    def planned(self, plan: SearchPlan) -> None:
        self._progress.planned(plan)
        self._print(f"{safe_text(self._title)}: at most {plan.max_calls} calls")

    def phase(self, phase: Phase, detail: str, total: int) -> None:
        self._progress.phase(phase, detail, total)

    def finished(self, scored: Scored, spent: int, cost: float | None, replayed: bool = False) -> None:
        self._progress.finished(scored, spent, cost, replayed)
        if replayed:
            self._replayed += 1
            return
        self._say_what_the_log_had()
        if self._progress.tenth > self._tenth or self._clock() - self._printed >= SECONDS_BETWEEN:
            self._tenth = self._progress.tenth
            self._print(progress_line(self._progress.facts()))

    def decided(self, record: CandidateRecord) -> None:
        self._progress.decided(record)
        line = f"candidate {record.number}: {safe_text(candidate_reason(record))}"
        if record.val_mean is not None:
            line += f" ({number(record.val_mean)} on validation)"
        if self._progress.replaying:
            self._unsaid.append(line)
        else:
            self._say_what_the_log_had()
            self._print(line)

    def proposed(self, number: int, parent: str, texts: Mapping[str, str], changed: Sequence[str]) -> None:
        self._progress.proposed(number, parent, texts, changed)

    def note(self, line: str) -> None:
        for part in line.splitlines():
            self._print(safe_text(part, 1000))

    def confirmed(self, confirmation: Confirmation) -> None:
        self._progress.confirmed(confirmation)
        self._say_what_the_log_had()
        self._print(f"confirmed: {confirmation_line(confirmation)}")

    def close(self) -> None:
        self._say_what_the_log_had()

    def _say_what_the_log_had(self) -> None:
        """One line for all of it, once."""
        if not self._replayed:
            return
        self._tenth = self._progress.tenth
        candidates, self._unsaid = len(self._unsaid), []
        self._print(f"from the log: {self._replayed} calls, {candidates} candidates decided on, not paid for again")
        self._replayed = 0

    def _print(self, line: str) -> None:
        """One line, never broken, so that it can be copied and grepped."""
        self._printed = self._clock()
        self.console.print(Text(line), soft_wrap=True)
        self.console.file.flush()


def progress_line(facts: SearchFacts) -> str:
    """How far the search has come, on one line, for logs."""
    total = facts.plan.max_calls if facts.plan else 0
    parts = [f"{facts.spent}/{total} calls"]
    if facts.phase is not None:
        parts.append(phase_line(facts.phase, facts))
    if facts.best is not None:
        parts.append(f"best {best_line(facts)}")
    if facts.errors:
        parts.append(f"{facts.errors} failed")
    if facts.cost is not None:
        parts.append(f"${facts.cost:.4f}")
    if facts.remaining is not None and facts.spent < total:
        parts.append(f"at most {duration(facts.remaining)} left")
    return "  ".join(parts)
