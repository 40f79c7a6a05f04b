"""GRPO, mean-centred, the default advantage: a rollout is compared with its group.

    A_i = r_i - mean(r)

Without the division by the standard deviation, which favours tasks that are nearly always or never solved.
Source: Dr. GRPO, Liu et al. 2025 (arXiv:2503.20783).

Its loss is PPO's clipped surrogate (`ppo.py`), as in DeepSeekMath, Shao et al. 2024 (arXiv:2402.03300).
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.algorithms import Algorithm, Array, ScoredGroup, ppo


def advantages(groups: Sequence[ScoredGroup]) -> list[Array]:
    return [group.rewards_G - group.rewards_G.mean() for group in groups]


ALGORITHM = Algorithm(
    name="grpo", advantages=advantages, loss=ppo.loss, loss_constants=ppo.CONSTANTS, weighs_by_ratio=True
)
