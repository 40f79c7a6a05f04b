"""Rewards of an evaluation that is running: their mean with its interval, from sums alone.

The figures are those of `analysis/summary.py`, but a task is dropped once all its rollouts are there: memory grows with
the tasks in flight, and a million rollouts take no more of it than a hundred.
"""

from __future__ import annotations

import math

from whet.evals.analysis.statistics import MeanInterval, clustered_estimate


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
