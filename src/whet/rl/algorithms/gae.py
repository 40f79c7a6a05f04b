"""Generalised advantage estimation: how much better a token turned out than a critic had expected, token by token.

    d_t = r_t + discount V_(t+1) - V_t
    A_t = sum over k >= t of (discount lambda)^(k - t) d_k        R_t = A_t + V_t, what the critic learns

over the completion tokens of a rollout, turn after turn, with V 0 behind the last. V_t is what the critic expects
before token t. A turn's last token earns the turn's reward, the last turn's what `step_returns.py` says in addition.
Source: Schulman et al. 2016 (arXiv:1506.02438).

`advantages` are the rewards r: values are known once the learner has seen the batch (`rl/data/values.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from whet.rl.algorithms import Algorithm, Array, ScoredGroup
from whet.rl.algorithms.step_returns import lengths_of, step_rewards


def token_rewards(
    groups: Sequence[ScoredGroup], *, discount: float, returns_outcome: Literal["rest", "whole", "none"]
) -> list[list[Array]]:
    """Of each completion token; those of turns without tokens are earned by the token before."""
    return [
        [
            _at_ends(lengths_of(state), step_rewards(state, reward, returns_outcome))
            for state, reward in zip(group.states, group.rewards_G, strict=True)
        ]
        for group in groups
    ]


def _at_ends(lengths: Sequence[int], rewards_T: Array) -> Array:
    import numpy as np

    rewards_C = np.zeros(sum(lengths))
    if not len(rewards_C):
        return np.zeros(())
    for end, reward in zip(np.cumsum(lengths), rewards_T, strict=True):
        rewards_C[max(end - 1, 0)] += reward
    return rewards_C


def estimate(rewards_C: Array, values_C: Array, discount: float, decay: float) -> Array:
    """The advantages of the tokens of a rollout; `decay` is lambda."""
    import numpy as np

    following_C = np.append(values_C[1:], 0.0)
    advantages_C = rewards_C + discount * following_C - values_C
    for token in range(len(advantages_C) - 2, -1, -1):
        advantages_C[token] += discount * decay * advantages_C[token + 1]
    return advantages_C


ALGORITHM = Algorithm(
    name="gae",
    advantages=token_rewards,
    advantage_keys=("discount", "returns_outcome"),
    needs_whole_batch=True,
    excludes_reward_norm=("group", "batch", "running"),  # which changes no rewards of steps
)
