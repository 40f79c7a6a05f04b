"""One environment of a mix gets worse while the others get better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord, Series

NAME = "forgetting"
SMOOTH = 5
"""Steps whose mean is compared; 2 in a run of fewer than ten."""
FALL = 0.3
"""Share of its best that the environment has lost."""
CHANCE = 4.0
"""Multiples of how much its reward changes from a step to the next."""


def check(run: RunRecord) -> Iterator[Finding]:
    names = run.environments
    if len(names) < 2:
        return
    shares = _shares(run)
    for number, name in enumerate(names):
        rewards = run.series(f"reward/{name}/mean")
        if len(rewards) < MIN_STEPS:
            continue
        levels = rewards.means(SMOOTH if len(rewards) >= 2 * SMOOTH else 2)
        best = max(range(len(levels)), key=lambda place: levels.values[place])
        now = rewards.last(SMOOTH if len(rewards) >= 2 * SMOOTH else 2)
        lost = levels.values[best] - now.mean
        chance = CHANCE * _jitter(rewards) / math.sqrt(len(now))
        if lost < max(FALL * abs(levels.values[best]), chance) or not _others_gained(run, name):
            continue
        yield Finding(
            NAME,
            "warning",
            f"{name} is forgotten while the others are learned",
            [
                f"mean reward of {name} {levels.values[best]:.3f} up to step {levels.steps[best]}, "
                f"{now.mean:.3f} in {now.span}",
                f"it has {shares[number]:.0%} of a batch",
            ],
            [
                _more(run, number),
                Change("or train it on its own, and see whether its reward asks for something contrary"),
            ],
        )


def _jitter(rewards: Series) -> float:
    """The typical change from one step to the next: its few groups of a batch vary more than the whole batch."""
    return statistics.median(abs(b - a) for a, b in zip(rewards.values, rewards.values[1:], strict=False))


def _others_gained(run: RunRecord, name: str) -> bool:
    gains = []
    for other in run.environments:
        rewards = run.series(f"reward/{other}/mean")
        if other != name and len(rewards):
            gains.append(rewards.last(SMOOTH).mean - rewards.first(2).mean)
    return bool(gains) and sum(gains) > 0


def _shares(run: RunRecord) -> list[float]:
    names = run.environments
    weights = run.setting("buffer.env_ratios") or [
        float(run.setting(f"env.{i}.weight", 1.0)) for i in range(len(names))
    ]
    return [weight / sum(weights) for weight in weights]


def _more(run: RunRecord, number: int) -> Change:
    ratios = run.setting("buffer.env_ratios")
    if ratios:
        raised = [2 * ratio if place == number else ratio for place, ratio in enumerate(ratios)]
        return run.change("buffer.env_ratios", raised, "more of each batch is then this environment's")
    weight = float(run.setting(f"env.{number}.weight", 1.0))
    return run.change(f"env.{number}.weight", 2 * weight, "more of each batch is then this environment's")
