"""The reward rises while something falls that went with it at first: the reward has come apart from what it stood for.

Other functions and metrics of the rubric are the witnesses. One counts if it agreed with the reward before anything was
learned (over the rollouts of the first step), and then fell while the reward rose.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, Row, RunRecord

NAME = "reward-hacking"
AGREED = 0.3
"""Correlation with the reward in the first step from which a metric is taken for a witness."""
ROLLOUTS = 16
"""Rollouts below which a correlation is chance."""
MOVED = 0.5
"""Deviations (over rollouts of the first step) by which the reward has risen, and the witness fallen."""


def check(run: RunRecord) -> Iterator[Finding]:
    for environment in run.environments:
        rows = [
            row for row in run.first_rollouts if row.get("environment") == environment and row.get("reward") is not None
        ]
        rewards = run.series(f"reward/{environment}/mean")
        if len(rows) < ROLLOUTS or len(rewards) < MIN_STEPS:
            continue
        gained = rewards.last(MIN_STEPS).mean - rewards.values[0]
        if gained < MOVED * _spread([float(row["reward"]) for row in rows]):
            continue
        for name in sorted({key for row in rows for key in row.get("metrics") or {}}):
            yield from _witness(run, environment, name, rows)


def _witness(run: RunRecord, environment: str, name: str, rows: list[Row]) -> Iterator[Finding]:
    pairs = [
        (float(row["reward"]), float(row["metrics"][name]))
        for row in rows
        if (row.get("metrics") or {}).get(name) is not None
    ]
    values = run.series(f"reward/{environment}/{name}")
    if len(pairs) < ROLLOUTS or len(values) < MIN_STEPS:
        return
    agreed = correlation(*zip(*pairs, strict=True))
    now = values.last(MIN_STEPS)
    lost = values.values[0] - now.mean
    if agreed < AGREED or lost < MOVED * _spread([value for _, value in pairs]):
        return
    rewards = run.series(f"reward/{environment}/mean")
    yield Finding(
        NAME,
        "warning",
        f"the reward of {environment} rises while its {name} falls",
        [
            f"mean reward {rewards.values[0]:.3f} in step {rewards.steps[0]}, "
            f"{rewards.last(MIN_STEPS).mean:.3f} in {now.span}",
            f"{name} {values.values[0]:.3f} then, {now.mean:.3f} now; in step {values.steps[0]} the two agreed "
            f"(correlation {agreed:.2f} over {len(pairs)} rollouts)",
        ],
        [
            Change(
                f"look at the best rewarded rollouts: what do they do instead? Then give {name} weight in the rubric"
            ),
            *(
                []
                if run.setting("algorithm.kl_coef", 0.0)
                else [run.change("algorithm.kl_coef", 0.01, "holds the policy to what it began with")]
            ),
        ],
    )


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's; 0 where one of the two does not vary."""
    if _spread(left) == 0 or _spread(right) == 0:
        return 0.0
    return statistics.correlation(left, right)


def _spread(values: Sequence[float]) -> float:
    spread = statistics.pstdev(values)
    return spread if math.isfinite(spread) else 0.0
