"""REINFORCE leave-one-out: a rollout is compared with the others of its group.

    A_i = r_i - mean of the others = (r_i - mean(r)) G / (G - 1)

An unbiased baseline. Source: Ahmadian et al. 2024 (arXiv:2402.14740).
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.algorithms import Algorithm, Array, ScoredGroup


def advantages(groups: Sequence[ScoredGroup]) -> list[Array]:
    return [
        (rewards_G - rewards_G.mean()) * len(rewards_G) / max(len(rewards_G) - 1, 1)
        for rewards_G in (group.rewards_G for group in groups)
    ]


ALGORITHM = Algorithm(name="rloo", advantages=advantages)
