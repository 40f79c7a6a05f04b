"""Shows a session of evaluations while it works: a live view in a terminal, plain lines elsewhere.

Plain lines are few enough for a log: one at the start and at the end of each evaluation, one for each tenth of its
rollouts, one a minute where a tenth takes longer, and every note.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from whet.evals.analysis.summary import EvalSummary
from whet.evals.live.progress import SAMPLES, SessionProgress
from whet.evals.live.views import live_view, plan_line, progress_line
from whet.evals.observer import EvalObserver, PlannedEval
from whet.records.live import Output, RunView
from whet.system.terminal import duration
from whet.types import RolloutOutput


def open_view(*, quiet: bool = False) -> EvalObserver:
    """The observer of a session; one that does nothing where `quiet`.

    Close it, whatever happens: `with contextlib.closing(open_view()) as view`.
    """
    return EvalObserver() if quiet else EvalView(Output.find())


class EvalView(RunView, EvalObserver):
    """An observer that shows a session."""

    stop_question = "Stop the evaluation? q again stops it, any other key continues."

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._session = SessionProgress((), output.clock)
        self._selected: int | None = None  # None: the one that works
        self._sample = 0

    @property
    def keys(self) -> str:
        return ("←/→ evaluation   " if len(self._session.evaluations) > 1 else "") + "s sample   q stop"

    def start(self, evaluations: Sequence[PlannedEval]) -> None:
        self._session = SessionProgress(evaluations, self.clock)
        for number, plan in enumerate(evaluations):
            self.passed(10 * plan.kept // max(1, plan.rollouts), number)
            self.line(plan_line(plan))
        for caution in dict.fromkeys(plan.caution for plan in evaluations if plan.caution):
            self.print(caution)
        self.begin()

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        with self.lock:
            self._session.rollout(evaluation, row)
        self.changed()
        progress = self._session.evaluations[evaluation]
        tenth = min(9, 10 * progress.done // max(1, progress.total))  # the last one is reported by `finish`
        if not self.live and self.due(tenth, evaluation):
            self._report(evaluation)

    def finish(self, evaluation: int, summary: EvalSummary) -> None:
        with self.lock:
            self._session.finish(evaluation)
        self.changed()
        if not self.live:
            self._report(evaluation, f"  in {duration(summary.seconds)}")

    def _report(self, evaluation: int, more: str = "") -> None:
        self.print(progress_line(self._session.evaluations[evaluation]) + more)

    @property
    def transient(self) -> bool:
        """The summary replaces the picture; where there will be none, the last picture stays."""
        return self._session.finished

    def draw(self, width: int, height: int, footer: str) -> RenderableType:
        return live_view(self._session, self._shown, SAMPLES[self._sample], width, height, footer, self.sampling())

    @property
    def _shown(self) -> int:
        return self._session.current if self._selected is None else self._selected

    def move(self, by: int) -> None:
        self._selected = (self._shown + by) % len(self._session.evaluations)

    def key(self, key: str) -> None:
        if key == "s":
            self._sample = (self._sample + 1) % len(SAMPLES)
