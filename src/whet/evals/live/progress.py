"""What the view of a session of evaluations shows, as data: fed by the observer's events. Knows no terminal.

A rollout costs a few microseconds, and memory does not grow with their number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from whet.envs.env_group import member_of
from whet.evals.analysis.statistics import MeanInterval, clustered_estimate
from whet.evals.observer import PlannedEval
from whet.rollouts.totals import Totals
from whet.types import RolloutOutput

SLOWEST = 5
SAMPLE_SECONDS = 5.0
"""How long the latest sample stays: long enough to be read."""
SAMPLES = ("latest", "best", "worst", "failed")


class Progress(ABC):
    """How far something has come, and how fast."""

    total: int  # rollouts

    @property
    @abstractmethod
    def done(self) -> int: ...

    @property
    @abstractmethod
    def new(self) -> int:
        """Rollouts that were not kept from before."""

    @property
    @abstractmethod
    def elapsed(self) -> float:
        """Seconds."""

    @property
    def rate(self) -> float | None:
        """New rollouts a second."""
        elapsed = self.elapsed
        return self.new / elapsed if self.new and elapsed > 0 else None

    @property
    def remaining(self) -> float | None:
        """Seconds, estimated from the rollouts so far."""
        rate = self.rate
        return None if rate is None else max(0, self.total - self.done) / rate


class EvalProgress(Progress):
    """One evaluation, as far as it has come."""

    def __init__(self, plan: PlannedEval, name: str, clock: Callable[[], float]) -> None:
        """`name` is short, and no other's in the session."""
        self.plan, self.name, self.total = plan, name, plan.rollouts
        self._clock = clock
        self.began: float | None = None  # about when its first rollout that was not kept began
        self.ended: float | None = None
        self.totals = Totals(plan.rollouts_per_example, plan.pass_threshold)
        self.scores = Scores(plan.rollouts_per_example)
        self.members = {name: Scores(plan.rollouts_per_example) for name in plan.members}
        self.samples: dict[str, RolloutOutput] = {}  # by their names in `SAMPLES`
        self.new_output_tokens = 0.0
        self._slowest: list[tuple[float, int, Any]] = []  # the index breaks ties: tasks of any kind do not compare
        self._sample_until = -math.inf

    @property
    def done(self) -> int:
        return self.totals.num_rollouts

    @property
    def new(self) -> int:
        return max(0, self.done - self.plan.kept)

    @property
    def elapsed(self) -> float:
        """Seconds since its first rollout began; 0 before."""
        end = self._clock() if self.ended is None else self.ended
        return 0.0 if self.began is None else end - self.began

    @property
    def slowest(self) -> list[tuple[float, Any]]:
        """(seconds, task), slowest first."""
        return [(-seconds, task) for seconds, _, task in self._slowest]

    def add(self, row: RolloutOutput, now: float) -> None:
        self.totals.add([row])
        if self.new:
            self.new_output_tokens += (row.get("token_usage") or {}).get("output_tokens") or 0.0
        seconds = _seconds(row)
        if seconds and (len(self._slowest) < SLOWEST or seconds > -self._slowest[-1][0]):
            insort(self._slowest, (-seconds, self.done, row.get("example_id")))
            del self._slowest[SLOWEST:]
        if now >= self._sample_until:
            self.samples["latest"] = row
            self._sample_until = now + SAMPLE_SECONDS
        failed = row.get("error") is not None
        reward = None if failed else row.get("reward")
        if failed:
            self.samples["failed"] = row
        elif reward is not None:
            self._keep_extremes(row, reward)
        self.scores.add(row.get("example_id"), reward)
        if self.members and (member := self.members.get(member_of(row))) is not None:
            member.add(row.get("example_id"), reward)

    def _keep_extremes(self, row: RolloutOutput, reward: float) -> None:
        if "best" not in self.samples or reward > self.samples["best"]["reward"]:
            self.samples["best"] = row
        if "worst" not in self.samples or reward < self.samples["worst"]["reward"]:
            self.samples["worst"] = row


class SessionProgress(Progress):
    """All evaluations of a session. `clock` is in seconds and only ever compared with itself."""

    def __init__(self, plans: Sequence[PlannedEval], clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started = clock()
        self.evaluations = [EvalProgress(plan, name, clock) for plan, name in zip(plans, names(plans), strict=True)]
        self.total = sum(plan.rollouts for plan in plans)
        self.current = 0
        """The evaluation of the latest rollout."""

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        now = self._clock()
        progress = self.evaluations[evaluation]
        progress.add(row, now)
        self.current = evaluation
        if progress.began is None and progress.new:
            # Others may have started before it, so the duration of the rollout decides.
            progress.began = max(self.started, now - (_seconds(row) or 0.0))

    def finish(self, evaluation: int) -> None:
        self.evaluations[evaluation].ended = self._clock()

    @property
    def finished(self) -> bool:
        return all(one.ended is not None for one in self.evaluations)

    @property
    def done(self) -> int:
        return sum(one.done for one in self.evaluations)

    @property
    def new(self) -> int:
        return sum(one.new for one in self.evaluations)

    @property
    def elapsed(self) -> float:
        return self._clock() - self.started


def _seconds(row: RolloutOutput) -> float | None:
    """From the rollout's start to its last turn."""
    seconds: float | None = ((row.get("timing") or {}).get("generation") or {}).get("duration")
    return seconds


def names(plans: Sequence[PlannedEval]) -> list[str]:
    """Short names: the environment, its model where there are several, and what a sweep varies."""
    several = len({plan.model for plan in plans}) > 1
    named = []
    for plan in plans:
        varied = [f"{key} {value}" for key, value in plan.varied.items()]
        named.append(", ".join([plan.environment, *([plan.model] if several else []), *varied]))
    count, seen = Counter(named), Counter[str]()
    for index, name in enumerate(named):
        if count[name] > 1:
            seen[name] += 1
            named[index] = f"{name} #{seen[name]}"
    return named


# Rewards of an evaluation that is running: their mean with its interval, from sums alone.
#
# The figures are those of `analysis/summary.py`, but a task is dropped once all its rollouts are there: memory grows
# with the tasks in flight, and a million rollouts take no more of it than a hundred.


class Scores:
    """Grows by a rollout at a time; every rollout of a task is reported, those that failed with a reward of None."""

    def __init__(self, rollouts_per_example: int) -> None:
        self.count = 0  # rollouts with a reward
        self.examples = 0  # tasks with such a rollout
        self.low, self.high = math.inf, -math.inf
        self._per_example = rollouts_per_example
        self._open: dict[object, _OpenTask] = {}
        # Sums over tasks, c the number of a task's rewards and s their sum (less `_shift` each, so that no digits are
        # lost where rewards are large and alike): of s, of s * s, of c * s and of c * c.
        self._shift = 0.0
        self._s = self._ss = self._cs = self._cc = 0.0

    def add(self, example_id: object, reward: float | None) -> None:
        """One rollout that has finished."""
        task = self._open.get(example_id)
        if task is None:
            task = self._open[example_id] = _OpenTask()
        task.seen += 1
        if reward is not None and math.isfinite(reward):
            self._add_reward(task, reward)
        if task.seen == self._per_example:
            del self._open[example_id]

    def _add_reward(self, task: _OpenTask, reward: float) -> None:
        if self.count == 0:
            self._shift = reward
        self.low, self.high = min(self.low, reward), max(self.high, reward)
        value = reward - self._shift
        self.count += 1
        self.examples += task.count == 0
        self._s += value
        self._ss += value * (2.0 * task.sum + value)
        self._cs += task.sum + value + task.count * value
        self._cc += 2.0 * task.count + 1.0
        task.count += 1
        task.sum += value

    def reward(self) -> MeanInterval | None:
        """The mean of all rewards so far with its 95 % interval; None while there is none."""
        if not self.count:
            return None
        mean = self._s / self.count
        squares = max(0.0, self._ss - 2.0 * mean * self._cs + mean * mean * self._cc)
        return clustered_estimate(
            self._shift + mean,
            squares,
            examples=self.examples,
            count=self.count,
            shares=self.low >= 0.0 and self.high <= 1.0,
        )


class _OpenTask:
    """One task in flight."""

    __slots__ = ("count", "seen", "sum")

    def __init__(self) -> None:
        self.seen = self.count = 0
        self.sum = 0.0
