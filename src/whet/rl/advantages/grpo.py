"""GRPO, mean-centred, the default: a rollout is compared with its group.

    A_i = r_i - mean(r)

Without the division by the standard deviation, which favours tasks that are nearly always or never solved.
Source: Dr. GRPO, Liu et al. 2025 (arXiv:2503.20783).
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.advantages.terms import Array


def grpo(rewards_by_group: Sequence[Array]) -> list[Array]:
    return [rewards_G - rewards_G.mean() for rewards_G in rewards_by_group]
