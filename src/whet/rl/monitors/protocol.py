"""What a run tells the people and tools that watch it. The orchestrator calls; monitors print, append or upload.

Metric names are those of `docs/training.md`: `reward/mean`, `reward/<env>/mean`, `reward/<env>/<function>`,
`policy/kl`, `optim/loss`, `time/step`, `perf/tokens_per_s`, `eval/<env>/reward`, ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from whet.rollouts.totals import EvalScore


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What is about to happen, told once before the first step."""

    name: str
    directory: Path
    model: str
    environments: list[str]
    batch_size: int
    rollouts_per_example: int
    max_steps: int
    first_step: int = 1  # > 1 when resumed
    parameters: int = 0  # of the model
    trained_parameters: int = 0  # fewer with LoRA
    seed: int = 0
    members: dict[str, list[str]] = field(default_factory=dict)  # of environments that are groups: `<group>/<member>`
    batch: str = ""  # what a step takes, in words, where that is not groups of rollouts


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimiser step. `metrics` is the line of `metrics.jsonl` (without `step`)."""

    step: int
    metrics: dict[str, float]
    sample: dict[str, Any] | None = None  # one rollout row of this step, as in rollouts/


@dataclass(frozen=True, slots=True)
class EvalReport:
    moment: Literal["before", "during", "after"]
    step: int
    version: int  # policy version evaluated
    scores: list[EvalScore]


@dataclass(frozen=True, slots=True)
class Outcome:
    state: Literal["finished", "interrupted", "failed"]
    step: int
    message: str
    weights: Path | None = None
    report: Path | None = None
    rollouts: Path | None = None
    next_command: str | None = None


class Monitor(Protocol):
    def start(self, plan: RunPlan) -> None: ...
    def phase(self, name: str, done: int, total: int) -> None:
        """Progress inside a step: `generate`, `train`, `evaluate`, `save`; cheap, called often."""
        ...

    def step(self, report: StepReport) -> None: ...
    def evaluation(self, report: EvalReport) -> None: ...
    def note(self, message: str) -> None:
        """One line a person should see (a warning, a checkpoint written)."""
        ...

    def close(self, outcome: Outcome) -> None: ...
