"""GRPO with process supervision: every step's reward is compared with those of all steps of the group.

    n_k = (r_k - mean) / (deviation + 1e-4)     over all rewards of steps of the group's rollouts
    A_t = sum over k >= t of n_k                turns t of a rollout, for each of their tokens

Rewards of steps are those that the environment gives; a rollout without any has its own, at its last turn.
Source: DeepSeekMath, Shao et al. 2024 (arXiv:2402.03300), section 4.1.3; the deviation as in `grpo_std.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.rl.algorithms import STD_FLOOR, Algorithm, Array, ScoredGroup
from whet.rl.algorithms.step_returns import discounted, given_rewards, per_token


def advantages(groups: Sequence[ScoredGroup]) -> list[list[Array]]:
    import numpy as np

    made: list[list[Array]] = []
    for group in groups:
        given = [
            given_rewards(state) or {len(state["trajectory"]) - 1: float(reward)}
            for state, reward in zip(group.states, group.rewards_G, strict=True)
        ]
        rewards_N = np.array([reward for own in given for reward in own.values()])
        scale = (rewards_N.std(ddof=1) if len(rewards_N) > 1 else 0.0) + STD_FLOOR
        made.append([])
        for state, own in zip(group.states, given, strict=True):
            normed_T = np.zeros(len(state["trajectory"]))
            for turn, reward in own.items():
                if turn >= 0:
                    normed_T[turn] = (reward - rewards_N.mean()) / scale
            made[-1].append(per_token(state, discounted(normed_T, 1.0)))
    return made


ALGORITHM = Algorithm(
    name="process_rewards",
    advantages=advantages,
    excludes_reward_norm=("group", "batch", "running"),  # which changes no rewards of steps
)
