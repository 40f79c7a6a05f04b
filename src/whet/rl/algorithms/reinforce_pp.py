"""REINFORCE++ without its KL term: a rollout is compared with the whole batch.

    A_i = (r_i - mean of the batch) / (std of the batch + 1e-4)

Tasks are not compared with themselves, so an easy task's rollouts are all above average, and a group whose rewards are
all equal has advantages.
Source: Hu 2025 (arXiv:2501.03262).
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.algorithms import STD_FLOOR, Algorithm, Array, ScoredGroup


def advantages(groups: Sequence[ScoredGroup]) -> list[Array]:
    import numpy as np

    rewards_N = np.concatenate([group.rewards_G for group in groups])
    scale = rewards_N.std() + STD_FLOOR
    return [(group.rewards_G - rewards_N.mean()) / scale for group in groups]


ALGORITHM = Algorithm(
    name="reinforce_pp",
    advantages=advantages,
    needs_whole_batch=True,
    excludes_reward_norm=("batch", "running"),  # it divides by the batch's deviation itself
)
