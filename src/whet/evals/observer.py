"""What a session of evaluations reports to an observer: the live view, the plain lines, a test.

A session is what one `whet eval run` does: one evaluation, or several in one go. The session calls; observers print and
count, and never decide anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.display.live import RunObserver
from whet.evals.analysis.summary import EvalSummary
from whet.types import RolloutOutput


@dataclass(frozen=True, slots=True)
class PlannedEval:
    """One evaluation of a session, as it is planned."""

    environment: str
    model: str
    sampling: str  # "temperature 1", "greedy"
    examples: int
    rollouts_per_example: int
    kept: int = 0  # rollouts that a resumed evaluation has already
    directory: Path | None = None  # None: nothing is saved
    pass_threshold: float = 0.5  # reward at or above which a rollout passes
    varied: Mapping[str, Any] = field(default_factory=dict)  # what a sweep set for this evaluation, by name
    members: Sequence[str] = ()  # of an EnvGroup
    caution: str = ""  # a line about answers that may take long

    @property
    def rollouts(self) -> int:
        return self.examples * self.rollouts_per_example


class EvalObserver(RunObserver):
    """Evaluations are named by their index in `start`'s list. Calls come from the event loop's thread and are cheap."""

    def start(self, evaluations: Sequence[PlannedEval]) -> None:
        """Before anything is run."""

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        """A rollout is finished and scored (or has failed). Rows that were kept come first, when resuming."""

    def finish(self, evaluation: int, summary: EvalSummary) -> None:
        """All rollouts of an evaluation are there."""
