"""Which rollouts are learned from: those good enough to imitate, and pairs of a better and a worse one. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
    for number, where, row in _scored(rows, left):
        if min_reward is not None and row["reward"] < min_reward:
            left[f"left out: reward below {min_reward:g}"] += 1
            continue
        rewards[number] = row["reward"]
        if best_per_example is not None:
            of_task[_named_task(where, row)].append(number)
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


def preference_pairs(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[list[tuple[int, int]], Counter[str]]:
    """Of each group of rollouts, or else of each task, the positions of the one with most and with least reward.

    Of equal rewards the earlier is taken. Groups of equal rewards have no pair; they are counted, as failed rollouts
    are. Raises what `select_rollouts` raises.
    """
    left = Counter[str]()
    of_group: dict[Any, list[tuple[float, int]]] = defaultdict(list)
    for number, where, row in _scored(rows, left):
        group = row.get("group")
        of_group[_named_task(where, row) if group is None else group].append((row["reward"], number))
    pairs = []
    for rollouts in of_group.values():
        best = max(rollouts, key=lambda rollout: (rollout[0], -rollout[1]))
        worst = min(rollouts)
        if best[0] > worst[0]:
            pairs.append((best[1], worst[1]))
        else:
            left["left out: rollouts of one task with equal rewards, or one alone"] += len(rollouts)
    return pairs, left


def _scored(
    rows: Iterable[tuple[str, Mapping[str, Any]]], left: Counter[str]
) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Rows of rollouts that did not fail, with their position. Raises `DatasetError` for one without a reward."""
    for number, (where, row) in enumerate(rows):
        if row.get("error") is not None:
            left["left out: the rollout failed"] += 1
        elif not isinstance(row.get("reward"), int | float):
            raise DatasetError(f"{where}: rollouts are chosen by their reward, and this row has none")
        else:
            yield number, where, row


def _named_task(where: str, row: Mapping[str, Any]) -> bytes:
    if (task := task_of(row)) is None:
        raise DatasetError(
            f"{where}: rollouts of one task are compared, and this row does not say its own (example_id)"
        )
    return task
