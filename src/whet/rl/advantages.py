"""Rewards of groups become advantages. One small function each, with its formula and where it comes from.

Every function takes the rewards of all groups of a batch (a list of arrays, one group each, of any sizes) and returns
advantages of the same shape. Most look at one group at a time; `reinforce_pp` looks at the whole batch. A group whose
rewards are all equal has zero advantages, except in `reinforce_pp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whet.rl.losses.config import AdvantageName

Array: TypeAlias = NDArray[np.float64]

STD_FLOOR = 1e-4
"""Added to standard deviations: without it a group of nearly equal rewards would have enormous advantages."""


def advantages(name: AdvantageName, rewards_by_group: Sequence[ArrayLike]) -> list[Array]:
    """Advantages of the groups of one batch."""
    return ADVANTAGES[name]([np.asarray(rewards_G, np.float64) for rewards_G in rewards_by_group])


def grpo(rewards_by_group: Sequence[Array]) -> list[Array]:
    """A_i = r_i - mean(r).

    GRPO without the division by the standard deviation, which favours tasks that are nearly always or never solved:
    Dr. GRPO, Liu et al. 2025 (arXiv:2503.20783).
    """
    return [rewards_G - rewards_G.mean() for rewards_G in rewards_by_group]


def grpo_std(rewards_by_group: Sequence[Array]) -> list[Array]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-4), std with G - 1.

    GRPO as published: DeepSeekMath, Shao et al. 2024 (arXiv:2402.03300).
    """
    return [
        (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + STD_FLOOR) if len(rewards_G) > 1 else rewards_G * 0
        for rewards_G in rewards_by_group
    ]


def rloo(rewards_by_group: Sequence[Array]) -> list[Array]:
    """A_i = r_i - mean of the others = (r_i - mean(r)) G / (G - 1).

    REINFORCE leave-one-out: Ahmadian et al. 2024 (arXiv:2402.14740).
    """
    return [
        (rewards_G - rewards_G.mean()) * len(rewards_G) / max(len(rewards_G) - 1, 1) for rewards_G in rewards_by_group
    ]


def reinforce_pp(rewards_by_group: Sequence[Array]) -> list[Array]:
    """A_i = (r_i - mean of the batch) / (std of the batch + 1e-4).

    REINFORCE++ without its KL term: Hu 2025 (arXiv:2501.03262). Tasks are not compared with themselves, so an easy
    task's rollouts are all above average.
    """
    rewards_N = np.concatenate(rewards_by_group)
    scale = rewards_N.std() + STD_FLOOR
    return [(rewards_G - rewards_N.mean()) / scale for rewards_G in rewards_by_group]


def max_rl(rewards_by_group: Sequence[Array]) -> list[Array]:
    """A_i = (r_i - mean(r)) / mean(r), and 0 where mean(r) <= 0; for rewards >= 0.

    Weighs a task that is rarely solved by about one over how often it is, which is the gradient of its log-likelihood:
    Maximum Likelihood RL, Tajwar et al. 2026 (arXiv:2602.02710).
    """
    return [
        (rewards_G - mean) / mean if (mean := rewards_G.mean()) > 0 else np.zeros_like(rewards_G)
        for rewards_G in rewards_by_group
    ]


ADVANTAGES: dict[AdvantageName, Callable[[Sequence[Array]], list[Array]]] = {
    "grpo": grpo,
    "grpo_std": grpo_std,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "max_rl": max_rl,
}
