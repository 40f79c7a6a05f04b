"""What the terminal shows of a run, as data: fed by the monitor's calls, read by the views. Knows no terminal."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whet.rl.monitors.protocol import EvalReport, EvalScore, RunPlan, StepReport

RECENT_STEPS = 20
SAMPLE_SECONDS = 5.0
"""How long one sample stays on the screen: long enough to be read."""

LOSSES = {"optim/loss": "training", "validation/loss": "validation"}
"""What is shown where there are no rewards, by what people call it."""


@dataclass(slots=True)
class Progress:
    """Everything the views need to know."""

    plan: RunPlan
    clock: Callable[[], float]
    step: int = 0
    phase: str = "start"
    phase_done: int = 0
    phase_total: int = 0
    rewards: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by environment, "" is all
    losses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by metric
    metrics: dict[str, float] = field(default_factory=dict)  # of the newest step
    sample: dict[str, Any] | None = None
    sample_step: int = 0
    evaluations: list[EvalReport] = field(default_factory=list)
    finding: str | None = None  # the most urgent one of the doctor
    started: float = 0.0
    _mark: float = 0.0
    _shown_since: float = float("-inf")
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def __post_init__(self) -> None:
        self.started = self._mark = self.clock()
        self.step = self.plan.first_step - 1

    def on_phase(self, name: str, done: int, total: int) -> None:
        self.phase, self.phase_done, self.phase_total = name, done, total

    def on_step(self, report: StepReport) -> None:
        now = self.clock()
        self._seconds.append(now - self._mark)
        self._mark = now
        self.step = report.step
        self.metrics = report.metrics
        self._add("", "reward/mean")
        for name in self.plan.environments:
            self._add(name, f"reward/{name}/mean")
        for metric in LOSSES.keys() & report.metrics.keys():
            self.losses[metric].append(report.metrics[metric])
        if report.sample is not None and now - self._shown_since >= SAMPLE_SECONDS:
            self.sample, self.sample_step, self._shown_since = report.sample, report.step, now

    def _add(self, name: str, metric: str) -> None:
        if metric in self.metrics:  # a small batch may hold no group of an environment
            self.rewards[name].append(self.metrics[metric])

    def on_evaluation(self, report: EvalReport) -> None:
        self.evaluations.append(report)
        self._mark = self.clock()  # evaluating is no part of a step's time

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    @property
    def step_seconds(self) -> float | None:
        """Mean time of the recent steps, from one report to the next."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    @property
    def remaining(self) -> float | None:
        """Time until the last step, as far as the recent ones tell."""
        seconds = self.step_seconds
        return None if seconds is None else seconds * (self.plan.max_steps - self.step)

    def evaluation(self, moment: str) -> EvalReport | None:
        """The last evaluation of this moment."""
        return next((report for report in reversed(self.evaluations) if report.moment == moment), None)

    def held_out(self, environment: str) -> float | None:
        """The newest held-out reward of an environment, sampled as in training rather than greedily."""
        if not self.evaluations:
            return None
        scores = {score.sampling: score for score in self.evaluations[-1].scores if score.environment == environment}
        return scores[sorted(scores, key=_greedy_last)[0]].reward if scores else None


def _greedy_last(sampling: str) -> tuple[bool, str]:
    return sampling == "greedy", sampling


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity of one environment, before and after, for each way of sampling: `{sampling: (before, after)}`."""

    environment: str
    quantity: str  # "reward", or a metric of the rubric
    values: dict[str, tuple[float | None, float | None]]


def compare(before: EvalReport | None, after: EvalReport | None) -> tuple[list[str], list[Comparison]]:
    """The ways of sampling, and a row per environment (and per exact match), with the means over environments last."""
    found: dict[tuple[str, str], dict[str, list[float | None]]] = {}
    samplings: dict[str, None] = {}
    for side, report in enumerate((before, after)):
        for score in report.scores if report else ():
            samplings[score.sampling] = None
            for quantity, value in _quantities(score).items():
                found.setdefault((score.environment, quantity), {}).setdefault(score.sampling, [None, None])[side] = (
                    value
                )
    ways = sorted(samplings, key=_greedy_last)
    order = list(dict.fromkeys(environment for environment, _ in found))
    rows = [
        Comparison(environment, quantity, {way: _pair(by_way.get(way)) for way in ways})
        for (environment, quantity), by_way in sorted(
            found.items(), key=lambda item: (order.index(item[0][0]), item[0][1] != "reward")
        )
    ]
    rewards = [row for row in rows if row.quantity == "reward"]
    if len(rewards) > 1:
        means = {
            way: (_mean([row.values[way][0] for row in rewards]), _mean([row.values[way][1] for row in rewards]))
            for way in ways
        }
        rows.append(Comparison("mean", "reward", means))
    return ways, rows


def _quantities(score: EvalScore) -> dict[str, float]:
    exact = {"exact_match": score.metrics["exact_match"]} if "exact_match" in score.metrics else {}
    return {"reward": score.reward, **exact}


def _pair(values: list[float | None] | None) -> tuple[float | None, float | None]:
    return (None, None) if values is None else (values[0], values[1])


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
