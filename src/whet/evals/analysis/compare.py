"""Two evaluations of the same tasks, task by task: by how much they differ, how sure that is, and where.

A task counts once, with the mean reward of its rollouts on either side; what is compared is the difference on each task
both sides have. That removes what tasks differ in, which is most of the noise of two separate means. Pure.

Source: E. Miller, "Adding Error Bars to Evals" (arXiv:2411.00640), paired differences.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.errors import RunError
from whet.evals.analysis.statistics import MeanInterval, t_975
from whet.types import RolloutOutput


@dataclass(frozen=True, slots=True)
class Change:
    """One task on both sides: mean reward of its rollouts, and the task's last user message."""

    example_id: Any
    before: float
    after: float
    question: str

    @property
    def difference(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """B less A. `changes` has every task both have, the largest losses first."""

    difference: MeanInterval
    before: float  # mean over the tasks both have
    after: float
    changes: list[Change]
    better: int
    worse: int
    equal: int
    only_before: int  # tasks that only this side has, or that failed on the other
    only_after: int

    @property
    def verdict(self) -> str:
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "one task says nothing"
        if low > 0:
            return "B is better"
        return "B is worse" if high < 0 else "no difference that these tasks could show"


@dataclass(slots=True)
class _Side:
    """A task on one side: its question, and the rewards of its rollouts."""

    prompt: bytes  # a digest: two sides may be millions of rollouts
    question: str
    rewards: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return math.fsum(self.rewards) / len(self.rewards)


def compare(before: Iterable[RolloutOutput], after: Iterable[RolloutOutput]) -> Comparison:
    """Rows of A and of B. Raises `RunError` where they have no task in common, or one id means two tasks."""
    first, second = _by_task(before), _by_task(after)
    shared = [task for task in first if task in second]
    changes = []
    for task in shared:
        mine, other = first[task], second[task]
        if mine.prompt != other.prompt:
            raise RunError(
                f"task {task} is not the same on both sides: {mine.question[:80]!r} and {other.question[:80]!r}. "
                "Compare evaluations of one environment with the same arguments."
            )
        changes.append(Change(task, mine.mean, other.mean, mine.question))
    if not changes:
        raise RunError("the two evaluations have no task in common that did not fail.")
    changes.sort(key=lambda change: change.difference)
    differences = [change.difference for change in changes]
    return Comparison(
        difference=paired_difference(differences),
        before=math.fsum(change.before for change in changes) / len(changes),
        after=math.fsum(change.after for change in changes) / len(changes),
        changes=changes,
        better=sum(difference > 0 for difference in differences),
        worse=sum(difference < 0 for difference in differences),
        equal=sum(difference == 0 for difference in differences),
        only_before=len(first) - len(shared),
        only_after=len(second) - len(shared),
    )


def paired_difference(differences: Sequence[float]) -> MeanInterval:
    """The mean difference and its 95 % interval: mean +- t * sd / sqrt(n), with n - 1 degrees of freedom."""
    count = len(differences)
    mean = math.fsum(differences) / count
    if count < 2:
        return MeanInterval(mean, None, None)
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (count - 1)
    reach = t_975(count - 1) * math.sqrt(variance / count)
    return MeanInterval(mean, mean - reach, mean + reach)


def _by_task(rows: Iterable[RolloutOutput]) -> dict[Any, _Side]:
    """The tasks whose rollouts were scored."""
    tasks: dict[Any, _Side] = {}
    for row in rows:
        if row.get("error") is None and row.get("reward") is not None:
            task = tasks.get(row["example_id"])
            if task is None:
                task = tasks[row["example_id"]] = _Side(_digest(row.get("prompt")), _question(row))
            task.rewards.append(float(row["reward"]))
    return tasks


def _digest(prompt: Any) -> bytes:
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).digest()


def _question(row: RolloutOutput) -> str:
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    users = [message for message in prompt or [] if isinstance(message, Mapping) and message.get("role") == "user"]
    content = users[-1].get("content") if users else ""
    return content if isinstance(content, str) else json.dumps(content)
