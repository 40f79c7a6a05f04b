"""Which rollouts are good enough to imitate: a least reward, and the best of each task. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from whet.errors import DatasetError


@dataclass(frozen=True, slots=True)
class Selection:
    """Of rows in an order: those that are kept, by their position, and how many were left out for which reason."""

    kept: list[int]
    left_out: Counter[str]


def task_of(row: Mapping[str, Any]) -> bytes | None:
    """The same for rollouts of one task, in whichever evaluation or step; None for a row that does not say its task.

    A number alone does not: two environments have a task 0.
    """
    if row.get("example_id") is None:
        return None
    said = [row.get(name) for name in ("environment", "example_id", "prompt")]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()


def select_rollouts(
    rows: Iterable[tuple[str, Mapping[str, Any]]], *, min_reward: float | None, best_per_example: int | None
) -> Selection:
    """Rollouts that did not fail, with at least `min_reward`; of each task, the `best_per_example` with most reward.

    `rows`: where each is from, and what it says. Of equal rewards the earlier is kept. Nothing but rewards is held.
    Raises `DatasetError` for a row without a reward, or without its task where that is needed.
    """
    left, rewards = Counter[str](), dict[int, float]()
    of_task: dict[bytes, list[int]] = defaultdict(list)
    for number, (where, row) in enumerate(rows):
        reward = row.get("reward")
        if row.get("error") is not None:
            left["left out: the rollout failed"] += 1
            continue
        if not isinstance(reward, int | float):
            raise DatasetError(f"{where}: rollouts are chosen by their reward, and this row has none")
        if min_reward is not None and reward < min_reward:
            left[f"left out: reward below {min_reward:g}"] += 1
            continue
        rewards[number] = reward
        if best_per_example is not None:
            if (task := task_of(row)) is None:
                raise DatasetError(f"{where}: the best of each task needs rows that say theirs (example_id)")
            of_task[task].append(number)
    if best_per_example is None:
        return Selection(list(rewards), left)
    kept = [
        number
        for numbers in of_task.values()
        for number in sorted(numbers, key=lambda number: -rewards[number])[:best_per_example]
    ]
    if dropped := len(rewards) - len(kept):
        left[f"left out: not among the best {best_per_example} of their task"] = dropped
    return Selection(sorted(kept), left)
