"""REINFORCE leave-one-out: a rollout is compared with the others of its group.

    A_i = r_i - mean of the others = (r_i - mean(r)) G / (G - 1)

An unbiased baseline. Source: Ahmadian et al. 2024 (arXiv:2402.14740).
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.advantages.terms import Array


def rloo(rewards_by_group: Sequence[Array]) -> list[Array]:
    return [
        (rewards_G - rewards_G.mean()) * len(rewards_G) / max(len(rewards_G) - 1, 1) for rewards_G in rewards_by_group
    ]
