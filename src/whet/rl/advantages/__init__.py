"""Rewards of groups become advantages: one small file each, with its formula and where it comes from.

Most look at one group at a time; `reinforce_pp` looks at the whole batch. A group whose rewards are all equal has zero
advantages, except in `reinforce_pp`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from whet.rl.advantages.grpo import grpo
from whet.rl.advantages.grpo_std import grpo_std
from whet.rl.advantages.max_rl import max_rl
from whet.rl.advantages.reinforce_pp import reinforce_pp
from whet.rl.advantages.rloo import rloo
from whet.rl.advantages.terms import AdvantageFunction, Array
from whet.rl.losses.config import AdvantageName

ADVANTAGES: dict[AdvantageName, AdvantageFunction] = {
    "grpo": grpo,
    "grpo_std": grpo_std,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "max_rl": max_rl,
}


def advantages(name: AdvantageName, rewards_by_group: Sequence[ArrayLike]) -> list[Array]:
    """Advantages of the groups of one batch, in arrays of the same sizes."""
    return ADVANTAGES[name]([np.asarray(rewards_G, np.float64) for rewards_G in rewards_by_group])
