"""Progress of evaluations without a terminal: plain lines, few enough for a log.

One at the start and at the end of each evaluation, one for each tenth of its rollouts, one a minute where a tenth takes
longer, and every note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from whet.evals.analysis.summary import EvalSummary
from whet.evals.live.progress import SessionProgress
from whet.evals.live.views import plan_line, progress_line
from whet.evals.observer import PlannedEval
from whet.system.terminal import duration, safe_text
from whet.types import RolloutOutput

SECONDS_BETWEEN = 60.0


class PlainLines:
    """An observer that prints to `console`."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock
        self._session: SessionProgress | None = None
        self._tenths: list[int] = []
        self._printed = 0.0  # when the last line was

    def start(self, evaluations: Sequence[PlannedEval]) -> None:
        self._session = SessionProgress(evaluations, self._clock)
        self._tenths = [10 * plan.kept // max(1, plan.rollouts) for plan in evaluations]
        for plan in evaluations:
            self._print(plan_line(plan))

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        assert self._session is not None
        self._session.rollout(evaluation, row)
        progress = self._session.evaluations[evaluation]
        tenth = 10 * progress.done // max(1, progress.plan.rollouts)
        # The last tenth is reported by `finish`.
        if self._tenths[evaluation] < tenth < 10 or self._clock() - self._printed >= SECONDS_BETWEEN:
            self._tenths[evaluation] = max(tenth, self._tenths[evaluation])
            self._print_progress(evaluation)

    def note(self, text: str) -> None:
        for line in text.splitlines():
            self._print(safe_text(line, 1000))

    def finish(self, evaluation: int, summary: EvalSummary) -> None:
        assert self._session is not None
        self._session.finish(evaluation)
        self._print_progress(evaluation, f"  in {duration(summary.seconds)}")

    def close(self) -> None:
        """Everything is printed already."""

    def _print_progress(self, evaluation: int, more: str = "") -> None:
        assert self._session is not None
        facts = self._session.evaluations[evaluation].facts(self._clock())
        self._print(progress_line(facts) + more)

    def _print(self, line: str) -> None:
        """One line, never broken, so that it can be copied and grepped."""
        self._printed = self._clock()
        self.console.print(Text(line), soft_wrap=True)
        self.console.file.flush()
