"""Returns: each turn has credit for what was earned from there on, by the rewards that the environment gives to steps.

    G_t = sum over k >= t of discount^(k - t) r_k          turns t of a rollout; their tokens have A_t
    A_t = G_t - baseline    or with returns_scale  (G_t - baseline) / (deviation + 1e-4)

    returns_baseline  turn    mean and deviation of the group's returns at the same turn: of the rollouts that have it
                      group   of all returns of the group
                      none    0

r_k is the reward of a step, 0 where the environment gave none. The last turn has in addition (`returns_outcome`) the
rollout's reward R less those of its steps, so that the undiscounted return of a rollout is R; or all of R; or nothing.
A rollout whose steps have no rewards earns R at its last turn. Sources: Sutton and Barto 2018, sections 3.3 and 13.4;
baselines over the group's rollouts as in GRPO (`grpo.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Literal

from whet.errors import TrainingError
from whet.rl.algorithms import STD_FLOOR, Algorithm, Array, ScoredGroup
from whet.rubrics.rubric import own_step_rewards
from whet.types import State


def advantages(
    groups: Sequence[ScoredGroup],
    *,
    discount: float,
    returns_baseline: Literal["turn", "group", "none"],
    returns_scale: bool,
    returns_outcome: Literal["rest", "whole", "none"],
) -> list[list[Array]]:
    import numpy as np

    made: list[list[Array]] = []
    for group in groups:
        returns = [
            discounted(step_rewards(state, reward, returns_outcome), discount)
            for state, reward in zip(group.states, group.rewards_G, strict=True)
        ]
        for turn in range(max(map(len, returns), default=0)) if returns_baseline == "turn" else ():
            there = [returns_T for returns_T in returns if len(returns_T) > turn]
            centred = _centred(np.array([returns_T[turn] for returns_T in there]), scale=returns_scale)
            for returns_T, value in zip(there, centred, strict=True):
                returns_T[turn] = value
        if returns_baseline == "group" and any(map(len, returns)):
            values = iter(_centred(np.concatenate(returns), scale=returns_scale))
            returns = [np.array([next(values) for _ in returns_T]) for returns_T in returns]
        made.append([per_token(state, returns_T) for state, returns_T in zip(group.states, returns, strict=True)])
    return made


def step_rewards(state: State, reward: float, outcome: Literal["rest", "whole", "none"] = "rest") -> Array:
    """Of each turn; `reward` is that of the rollout."""
    import numpy as np

    own = given_rewards(state)
    rewards_T = np.array([own.get(turn, 0.0) for turn in range(len(state["trajectory"]))])
    if len(rewards_T) and outcome != "none":
        rewards_T[-1] += reward - sum(own.values()) if outcome == "rest" else reward
    return rewards_T


def given_rewards(state: State) -> dict[int, float]:
    """Of the turns to which the environment gave one. Raises `TrainingError` for one that is no number."""
    own = own_step_rewards(state)
    for turn, reward in own.items():
        if not (isinstance(reward, Real) and math.isfinite(reward)):
            raise TrainingError(
                f"the environment gave turn {turn + 1} of task {state['example_id']} the reward {str(reward)[:80]}: "
                'step["reward"] should be a finite number, or None.'
            )
    return {turn: float(reward) for turn, reward in own.items()}


def discounted(rewards_T: Array, discount: float) -> Array:
    """For each turn, what is earned from there on."""
    returns_T = rewards_T.copy()
    for turn in range(len(returns_T) - 2, -1, -1):
        returns_T[turn] += discount * returns_T[turn + 1]
    return returns_T


def per_token(state: State, values_T: Array) -> Array:
    """A value of each turn, for each of its completion tokens."""
    import numpy as np

    lengths = lengths_of(state)
    return np.repeat(values_T, lengths) if sum(lengths) else np.zeros(())


def lengths_of(state: State) -> list[int]:
    """Completion tokens of each turn."""
    return [len((step.get("tokens") or {}).get("completion_ids", ())) for step in state["trajectory"]]


def _centred(values_N: Array, *, scale: bool) -> Array:
    deviation = values_N.std(ddof=1) + STD_FLOOR if scale and len(values_N) > 1 else 1.0
    centred_N: Array = (values_N - values_N.mean()) / deviation
    return centred_N


ALGORITHM = Algorithm(
    name="step_returns",
    advantages=advantages,
    advantage_keys=("discount", "returns_baseline", "returns_scale", "returns_outcome"),
    excludes_reward_norm=("group", "batch", "running"),  # which changes no rewards of steps
)
