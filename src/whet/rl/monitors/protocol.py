"""What a run reports to its monitors. The orchestrator calls; monitors print, append or upload.

Metric names are those of `docs/training.md`: `reward/mean`, `reward/<env>/mean`, `reward/<env>/<function>`,
`policy/kl`, `optim/loss`, `time/step`, `perf/tokens_per_s`, `eval/<env>/reward`, ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from whet.display.live import RunObserver
from whet.records.lock import EndState
from whet.rollouts.totals import EvalScore
from whet.rubrics.metric_names import flat_name


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What is about to happen, reported once before the first step."""

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
    failures: dict[str, str] = field(default_factory=dict)  # by environment, its most frequent error; untrusted text


@dataclass(frozen=True, slots=True)
class EvalReport:
    moment: Literal["before", "during", "after"]
    step: int
    version: int  # policy version evaluated
    scores: list[EvalScore]


@dataclass(frozen=True, slots=True)
class Outcome:
    state: EndState
    step: int
    message: str
    weights: Path | None = None
    report: Path | None = None
    rollouts: Path | None = None
    next_command: str | None = None


class Monitor(RunObserver):
    """Receives the events of training."""

    def start(self, plan: RunPlan) -> None:
        """Before the first step."""

    def phase(self, name: str, done: int, total: int) -> None:
        """Progress inside a step: `generate`, `train`, `evaluate`, `save`; cheap, called often."""

    def step(self, report: StepReport) -> None:
        """A step was trained."""

    def rewound(self, step: int) -> None:
        """The run has gone back to `step`: later ones, which were reported, are done again."""

    def evaluation(self, report: EvalReport) -> None:
        """Held-out tasks were evaluated."""

    def ended(self, outcome: Outcome) -> None:
        """The run is over, for whatever reason."""


GREEDY = "greedy"


def evaluation_metrics(report: EvalReport) -> dict[str, float]:
    """The scores of an evaluation as one flat dict, for trackers and `whet train metrics`.

    eval/version                        policy version that was evaluated
    eval/<env>/reward, pass@k, ...      at the evaluation's own temperature
    eval/<env>/greedy/reward, ...       greedily as well
    eval/<env>/<member>/reward, ...     of each member of an EnvGroup

    A reward is NaN where every rollout failed.
    """
    scores = [one for score in report.scores for one in (score, *score.members)]
    sampled = {score.environment for score in scores if score.sampling != GREEDY}
    metrics = {"eval/version": float(report.version)}
    for score in scores:
        also_greedy = score.sampling == GREEDY and score.environment in sampled
        prefix = f"eval/{score.environment}/greedy" if also_greedy else f"eval/{score.environment}"
        metrics |= {f"{prefix}/{name}": value for name, value in _values(score).items()}
    return metrics


def _values(score: EvalScore) -> dict[str, float]:
    return {
        **{flat_name(name): value for name, value in score.metrics.items()},
        **{f"pass@{k}": value for k, value in score.pass_at_k.items()},
        "reward": score.reward,
        "errored_frac": score.errors / score.rollouts if score.rollouts else 0.0,
    }
