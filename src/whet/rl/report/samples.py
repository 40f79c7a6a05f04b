"""Which rollouts a report shows. Pure choices, the same for the same files; an honest mix, not only the best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.rl.storage.rollout_log import evaluation_path, step_path
from whet.system.files import read_lines

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One held-out task under the policy before and after training, sampled in the same way."""

    why: str  # how the pair was chosen
    environment: str
    sampling: str
    before: Row
    after: Row


def before_and_after(directory: Path) -> list[Pair]:
    """For every environment: the task that gained most (if one gained), a typical one, and the one that lost most."""
    before, after = (evaluation_path(directory, moment, 0) for moment in ("before", "after"))
    if not (before.is_file() and after.is_file()):
        return []
    return pair_up(read_lines(before), read_lines(after))


def pair_up(before: Iterable[Row], after: Iterable[Row]) -> list[Pair]:
    """Rollouts of the same task, sampling and position in their group; sampled rather than greedy where both are."""
    first, second = _keyed(before), _keyed(after)
    common = [key for key in first if key in second]
    pairs: list[Pair] = []
    for environment in dict.fromkeys(key[0] for key in common):
        keys = [key for key in common if key[0] == environment]
        sampled = [key for key in keys if key[1] != "greedy"] or keys
        ordered = sorted(sampled, key=lambda key: second[key]["reward"] - first[key]["reward"])
        gain, loss = (second[key]["reward"] - first[key]["reward"] for key in (ordered[-1], ordered[0]))
        chosen = {"the largest gain": ordered[-1]} if gain > 0 else {}
        chosen["a typical task"] = ordered[len(ordered) // 2]
        if loss < 0:
            chosen["the largest loss"] = ordered[0]
        shown = set()
        for why, key in chosen.items():
            if key not in shown:
                shown.add(key)
                pairs.append(Pair(why, environment, key[1], first[key], second[key]))
    return pairs


def _keyed(rows: Iterable[Row]) -> dict[tuple[str, str, str, int], Row]:
    """By environment, sampling, task and position in the group; without rollouts that failed."""
    keyed: dict[tuple[str, str, str, int], Row] = {}
    positions: dict[tuple[str, str, str], int] = {}
    for row in rows:
        task = (str(row.get("environment")), str(row.get("sampling")), str(row.get("example_id")))
        positions[task] = position = positions.get(task, -1) + 1
        if row.get("error") is None and row.get("reward") is not None:
            keyed[(*task, position)] = row
    return keyed


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """Two rollouts of one task of one trained step, as far apart in advantage as the group goes."""

    step: int
    environment: str
    best: Row
    worst: Row


def trained_samples(directory: Path, steps: Sequence[int], per_step: int = 3) -> list[TrainedGroup]:
    """From the first, the middle and the last step: of each environment the group whose rewards differ most."""
    if not steps:
        return []
    shown = dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1]))
    groups = []
    for step in shown:
        path = step_path(directory, step)
        if path.is_file():
            groups += _widest_groups(step, read_lines(path))[:per_step]
    return groups


def _widest_groups(step: int, rows: Iterable[Row]) -> list[TrainedGroup]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.get("advantage") is not None:
            groups.setdefault((str(row.get("environment")), str(row.get("group"))), []).append(row)
    widest: dict[str, TrainedGroup] = {}
    for (environment, _), group in groups.items():
        ordered = sorted(group, key=lambda row: -float(row["advantage"]))
        one = TrainedGroup(step, environment, ordered[0], ordered[-1])
        if environment not in widest or _width(one) > _width(widest[environment]):
            widest[environment] = one
    return list(widest.values())


def _width(group: TrainedGroup) -> float:
    return float(group.best["advantage"]) - float(group.worst["advantage"])
