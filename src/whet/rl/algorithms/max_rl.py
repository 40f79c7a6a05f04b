"""Maximum likelihood RL: a task that is rarely solved weighs about one over how often it is.

    A_i = (r_i - mean(r)) / mean(r), and 0 where mean(r) <= 0; for rewards >= 0

The gradient of the task's log-likelihood of being solved. Source: Tajwar et al. 2026 (arXiv:2602.02710).
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.algorithms import Algorithm, Array, ScoredGroup


def advantages(groups: Sequence[ScoredGroup]) -> list[Array]:
    import numpy as np

    return [
        (rewards_G - mean) / mean if (mean := rewards_G.mean()) > 0 else np.zeros_like(rewards_G)
        for rewards_G in (group.rewards_G for group in groups)
    ]


ALGORITHM = Algorithm(
    name="max_rl",
    advantages=advantages,
    excludes_reward_norm=("group", "batch", "running"),  # it divides by the mean, which is 0 after them
)
