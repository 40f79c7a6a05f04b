"""REINFORCE++ without its KL term: a rollout is compared with the whole batch.

    A_i = (r_i - mean of the batch) / (std of the batch + 1e-4)

Tasks are not compared with themselves, so an easy task's rollouts are all above average.
Source: Hu 2025 (arXiv:2501.03262).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whet.rl.advantages.terms import STD_FLOOR, Array


def reinforce_pp(rewards_by_group: Sequence[Array]) -> list[Array]:
    rewards_N = np.concatenate(rewards_by_group)
    scale = rewards_N.std() + STD_FLOOR
    return [(rewards_G - rewards_N.mean()) / scale for rewards_G in rewards_by_group]
