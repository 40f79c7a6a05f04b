"""GRPO as published: small differences inside a group count as much as large ones.

    A_i = (r_i - mean(r)) / (std(r) + 1e-4), std with G - 1

A group of one has advantage 0. Source: DeepSeekMath, Shao et al. 2024 (arXiv:2402.03300).
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.algorithms import STD_FLOOR, Algorithm, Array, ScoredGroup


def advantages(groups: Sequence[ScoredGroup]) -> list[Array]:
    return [
        (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + STD_FLOOR) if len(rewards_G) > 1 else rewards_G * 0
        for rewards_G in (group.rewards_G for group in groups)
    ]


ALGORITHM = Algorithm(
    name="grpo_std",
    advantages=advantages,
    excludes_reward_norm=("group", "batch", "running"),  # it divides by a deviation itself
)
