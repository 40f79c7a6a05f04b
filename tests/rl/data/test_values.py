"""Generalised advantage estimation over the tokens of a rollout, against the double sum of its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from whet.errors import TrainingError
from whet.rl.algorithms.gae import estimate
from whet.rl.config import RunConfig
from whet.rl.data.assembly import RewardShaper, assemble
from whet.rl.data.curriculum import DrawnTask
from whet.rl.data.values import value_metrics, with_values
from whet.rl.loop.group import Group
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.types import State

ROLLOUTS = [
    (1.0, [(0.25, 2), (None, 3)], False),
    (0.5, [(None, 1)], False),
    (-1.0, [(0.5, 2), (0.5, 1), (1.0, 2)], True),
]
"""Reward, rewards and lengths of turns, and whether every turn begins a new branch."""


def state(reward: float, turns: list[tuple[float | None, int]], branches: bool) -> State:
    trajectory, ids = [], [1, 2]
    for number, (earned, length) in enumerate(turns):
        tokens = {
            "prompt_ids": [40 + number, 2] if branches else list(ids),
            "completion_ids": [3] * length,
            "completion_mask": [1] * length,
            "completion_logprobs": [-1.0] * length,
            "policy_version": [[0, length]],
        }
        trajectory.append({"tokens": tokens, "reward": earned, "advantage": None})
        ids += [*[3] * length, 9]
    own = [number for number, (earned, _) in enumerate(turns) if earned is not None]
    return State(
        example_id=7, trajectory=trajectory, is_truncated=False, reward=reward, advantage=0.0, steps_with_own_reward=own
    )


def expected_of(rewards: list[float], values: list[float], discount: float, decay: float) -> list[float]:
    deltas = [r + discount * following - v for r, v, following in zip(rewards, values, [*values[1:], 0], strict=True)]
    return [sum((discount * decay) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


@pytest.mark.parametrize(("discount", "decay"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.99, 0.0)])
def test_advantages_and_returns_of_tokens_over_turns_and_branches(discount: float, decay: float) -> None:
    config = AlgorithmConfig(advantage="gae", discount=discount, critic={"gae_lambda": decay})  # type: ignore[arg-type]
    group = Group(0, DrawnTask(0, 0, 0, 0), "e", [state(*one) for one in ROLLOUTS])
    assembled = assemble([group], config, RewardShaper(config), temperature=1.0)
    trained = assembled.batch.trained
    values_T = np.where(trained, np.random.default_rng(0).normal(size=len(trained)), 0).astype(np.float32)
    found = with_values(assembled, [group], values_T, config)
    at, rows = 0, []
    advantages, returns = found.batch.advantages[trained], found.batch.returns
    assert returns is not None
    for reward, turns, _ in ROLLOUTS:
        rewards = list[float]()
        for earned, length in turns:
            rewards += [*[0.0] * (length - 1), earned or 0.0]
        rewards[-1] += reward - sum(earned or 0.0 for earned, _ in turns)
        values = values_T[trained][at : at + len(rewards)].tolist()
        expected = expected_of(rewards, values, discount, decay)
        assert advantages[at : at + len(rewards)].tolist() == pytest.approx(expected, abs=1e-6)
        np.testing.assert_allclose(returns[trained][at : at + len(rewards)], np.add(expected, values), atol=1e-6)
        rows.append(pytest.approx(np.mean(expected), abs=1e-6))
        at += len(rewards)
    assert found.advantages == [rows]
    assert not found.batch.advantages[~trained].any()


def test_with_a_decay_of_one_an_advantage_is_the_return_less_the_value() -> None:
    values = np.array([0.5, -1.0, 2.0])
    found = estimate(np.array([0.0, 1.0, 3.0]), values, 1.0, 1.0)
    assert found.tolist() == pytest.approx([3.5, 5.0, 1.0])


def test_the_variance_that_values_explain_is_reported() -> None:
    config = AlgorithmConfig(advantage="gae", critic={"gae_lambda": 1.0})  # type: ignore[arg-type]
    group = Group(0, DrawnTask(0, 0, 0, 0), "e", [state(*one) for one in ROLLOUTS])
    assembled = assemble([group], config, RewardShaper(config), temperature=1.0)
    blind = with_values(assembled, [group], np.zeros(len(assembled.batch.ids), np.float32), config)
    knowing = with_values(assembled, [group], np.asarray(blind.batch.returns), config)
    assert value_metrics([blind])["value/explained_variance"] == pytest.approx(0.0)
    assert value_metrics([knowing])["value/explained_variance"] == pytest.approx(1.0)
    assert value_metrics([assembled]) == {}


def test_advantages_of_an_environment_are_refused() -> None:
    config = AlgorithmConfig(advantage="gae")
    group = Group(0, DrawnTask(0, 0, 0, 0), "e", [state(*one) for one in ROLLOUTS])
    group.states[0]["trajectory"][0]["advantage"] = 3.0
    assembled = assemble([group], config, RewardShaper(config), temperature=1.0)
    with pytest.raises(TrainingError, match="environment e sets advantages itself"):
        with_values(assembled, [group], np.zeros(len(assembled.batch.ids), np.float32), config)


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        ({"critic": {"gae_lambda": 0.5}}, "advantage = grpo has none, gae has"),
        ({"advantage": "gae", "kl_coef": 0.1, "kl_in": "reward"}, "which a critic knows nothing of"),
        ({"advantage": "gae", "returns_baseline": "none"}, "returns_baseline would have no effect"),
        ({"advantage": "gae", "reward_norm": "batch"}, "use it with grpo or rloo"),
    ],
)
def test_what_has_no_effect_or_meaning_is_refused(algorithm: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        RunConfig(name="r", env=[{"id": "reverse-text"}], algorithm=algorithm)  # type: ignore[arg-type]
