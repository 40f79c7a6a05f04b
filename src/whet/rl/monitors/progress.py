"""What the terminal shows of a run, as data: fed by the monitor's calls, read by the views. Knows no terminal."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.evals.analysis.compare import paired_difference
from whet.rl.monitors.protocol import EvalReport, RunPlan, StepReport
from whet.rollouts.totals import EvalScore

RECENT_STEPS = 20
SAMPLE_SECONDS = 5.0
"""How long one sample stays on the screen: long enough to be read."""

LOSSES = {"optim/loss": "training", "validation/loss": "validation"}
"""What is shown where there are no rewards, by what people call it."""


@dataclass(slots=True)
class RunProgress:
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
    failures: dict[str, str] = field(default_factory=dict)  # of the newest step, by environment; untrusted text
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
        self.metrics, self.failures = report.metrics, report.failures
        self._add_to_curves(report.metrics)
        if report.sample is not None and now - self._shown_since >= SAMPLE_SECONDS:
            self.sample, self.sample_step, self._shown_since = report.sample, report.step, now

    @property
    def names(self) -> list[str]:
        """Environments as metrics call them, the members of a group behind it."""
        return [name for env in self.plan.environments for name in (env, *self.plan.members.get(env, ()))]

    def remember(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Steps of before, when a run is resumed."""
        for row in rows:
            self._add_to_curves(row)

    def rewind(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Back to `step`, up to which `rows` are on record."""
        self.step, self._mark = step, self.clock()
        self.rewards.clear()
        self.losses.clear()
        self.evaluations = [report for report in self.evaluations if report.step <= step]
        self.remember(rows)

    def _add_to_curves(self, metrics: Mapping[str, Any]) -> None:
        for name in ("", *self.names):
            reward = metrics.get(f"reward/{name}/mean" if name else "reward/mean")
            if reward is not None:  # a small batch may hold no group of an environment
                self.rewards[name].append(reward)
        for metric in LOSSES:
            if metrics.get(metric) is not None:
                self.losses[metric].append(metrics[metric])

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
        scores = {
            one.sampling: one
            for score in self.evaluations[-1].scores
            for one in (score, *score.members)
            if one.environment == environment
        }
        return scores[sorted(scores, key=_greedy_last)[0]].reward if scores else None


def _greedy_last(sampling: str) -> tuple[bool, str]:
    return sampling == "greedy", sampling


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity before and after, and half the width of the 95 % interval of the difference."""

    before: float | None
    after: float | None
    reach: float | None = None  # None where fewer than two tasks can be paired

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def is_real(self) -> bool:
        """Whether the interval leaves out 0; also where there is none."""
        return self.change is not None and (self.reach is None or abs(self.change) > self.reach)


@dataclass(frozen=True, slots=True)
class ScoreComparison:
    """One quantity of one environment, before and after, by way of sampling."""

    environment: str
    quantity: str  # "reward", or a metric of the rubric
    values: dict[str, Difference]
    member: bool = False  # of an EnvGroup: a part of the row of the whole


def compare(before: EvalReport | None, after: EvalReport | None) -> tuple[list[str], list[ScoreComparison]]:
    """The ways of sampling, and a row per environment, member and exact match, with the means over environments last.

    A reward's interval is of the differences of tasks that both sides have (`whet.evals.analysis.compare`).
    """
    sides = [_by_name(report) for report in (before, after)]
    scores = {**sides[0], **sides[1]}
    ways = sorted({sampling for _, sampling in scores}, key=_greedy_last)
    names = list(dict.fromkeys(name for name, _ in scores))
    members = {one.environment for score in scores.values() for one in score.members}
    rows = []
    for name in names:
        pairs = {way: (sides[0].get((name, way)), sides[1].get((name, way))) for way in ways}
        rows.append(
            ScoreComparison(name, "reward", {way: _rewards(*pair) for way, pair in pairs.items()}, name in members)
        )
        exact = {way: Difference(*(_exact_match(side) for side in pair)) for way, pair in pairs.items()}
        if any(one.before is not None or one.after is not None for one in exact.values()):
            rows.append(ScoreComparison(name, "exact_match", exact, name in members))
    rewards = [row for row in rows if row.quantity == "reward" and not row.member]
    if len(rewards) > 1:
        environments = [row.environment for row in rewards]
        means = {way: _mean_over(way, environments, rewards, sides) for way in ways}
        rows.append(ScoreComparison("mean", "reward", means))
    return ways, rows


Scores = dict[tuple[str, str], EvalScore]


def _by_name(report: EvalReport | None) -> Scores:
    scores = report.scores if report else ()
    return {(one.environment, one.sampling): one for score in scores for one in (score, *score.members)}


def _rewards(before: EvalScore | None, after: EvalScore | None) -> Difference:
    reach = _reach(_differences(before, after))
    return Difference(None if before is None else before.reward, None if after is None else after.reward, reach)


def _mean_over(way: str, environments: list[str], rewards: list[ScoreComparison], sides: list[Scores]) -> Difference:
    """The mean over environments; with an interval where each has as many tasks, so that all tasks count alike."""
    pairs = [_differences(sides[0].get((name, way)), sides[1].get((name, way))) for name in environments]
    alike = len({len(differences) for differences in pairs}) == 1
    return Difference(
        _mean([row.values[way].before for row in rewards]),
        _mean([row.values[way].after for row in rewards]),
        _reach([difference for differences in pairs for difference in differences]) if alike else None,
    )


def _differences(before: EvalScore | None, after: EvalScore | None) -> list[float]:
    """Of the tasks that both sides have."""
    if before is None or after is None:
        return []
    return [after.by_task[task] - reward for task, reward in before.by_task.items() if task in after.by_task]


def _reach(differences: list[float]) -> float | None:
    estimate = paired_difference(differences) if differences else None
    return None if estimate is None or estimate.high is None else estimate.high - estimate.mean


def _exact_match(score: EvalScore | None) -> float | None:
    return None if score is None else score.metrics.get("exact_match")


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
