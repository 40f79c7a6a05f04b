"""Returns of turns and process rewards, against the formulas written out turn by turn."""

from __future__ import annotations

import asyncio
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from whet.errors import TrainingError
from whet.rl.data.assembly import RewardShaper, assemble
from whet.rl.data.curriculum import DrawnTask
from whet.rl.loop.group import Group
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.rubrics.rubric import Rubric, own_step_rewards
from whet.types import State

Step = tuple[float | None, int]
"""The reward of a step, if it has one, and its tokens."""
GROUP: list[tuple[float, list[Step]]] = [
    (1.0, [(0.5, 2), (None, 3), (0.25, 1)]),
    (-0.5, [(0.0, 1)]),
    (0.75, [(None, 2), (-1.0, 2)]),
    (2.0, [(1.0, 1), (1.0, 2), (0.0, 2), (0.0, 1)]),
]


def rollout(steps: list[Step]) -> State:
    """Every turn continues the one before."""
    trajectory, ids = [], [1, 2]
    for reward, length in steps:
        tokens = {
            "prompt_ids": list(ids),
            "completion_ids": [3] * length,
            "completion_mask": [1] * length,
            "completion_logprobs": [-1.0] * length,
            "policy_version": [[0, length]],
        }
        trajectory.append({"tokens": tokens, "reward": reward, "advantage": None})
        ids += [*[3] * length, 9]
    return State({"example_id": 7, "trajectory": trajectory, "is_truncated": False, "error": None, "reward": None})


def scored(rollouts: list[tuple[float, list[Step]]] = GROUP) -> Group:
    states, rewards = [rollout(steps) for _, steps in rollouts], iter([reward for reward, _ in rollouts])
    asyncio.run(Rubric(funcs=[lambda: next(rewards)]).score_group(states))
    return Group(0, DrawnTask(0, 0, 0, 0), "e", states)


def of_turns(group: Group, **keys: Any) -> list[list[float]]:
    """The advantage of each turn of each rollout, which all of its tokens have."""
    config = AlgorithmConfig(**keys)
    batch = assemble([group], config, RewardShaper(config), temperature=1.0).batch
    found = iter(batch.advantages[batch.trained].tolist())
    turns = [
        [{next(found) for _ in step["tokens"]["completion_ids"]} for step in state["trajectory"]]
        for state in group.states
    ]
    assert all(len(values) == 1 for rollout in turns for values in rollout)
    return [[values.pop() for values in rollout] for rollout in turns]


def returns(discount: float, outcome: str) -> list[list[float]]:
    made = []
    for reward, steps in GROUP:
        rewards = [given or 0.0 for given, _ in steps]
        if outcome == "rest":
            rewards[-1] += reward - sum(given or 0.0 for given, _ in steps)
        elif outcome == "whole":
            rewards[-1] += reward
        turns = range(len(rewards))
        made.append([sum(discount ** (k - t) * rewards[k] for k in turns if k >= t) for t in turns])
    return made


@pytest.mark.parametrize("outcome", ["rest", "whole", "none"])
@pytest.mark.parametrize(("baseline", "scale"), [("turn", False), ("turn", True), ("group", True), ("none", False)])
@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
def test_a_turn_has_the_discounted_return_from_there_less_its_baseline(
    discount: float, baseline: str, scale: bool, outcome: str
) -> None:
    made = returns(discount, outcome)
    expected = []
    for of_rollout in made:
        expected.append([])
        for turn, value in enumerate(of_rollout):
            alike = [other[turn] for other in made if turn < len(other)]
            if baseline == "group":
                alike = [one for other in made for one in other]
            deviation = stdev(alike) + 1e-4 if scale and len(alike) > 1 else 1.0
            expected[-1].append(value if baseline == "none" else (value - mean(alike)) / deviation)
    keys = {"returns_baseline": baseline, "returns_scale": scale, "returns_outcome": outcome}
    found = of_turns(scored(), advantage="step_returns", discount=discount, **keys)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-7)


def test_process_rewards_are_compared_with_all_of_the_group_and_add_up_from_there() -> None:
    given = [reward for _, steps in GROUP for reward, _ in steps if reward is not None]
    expected = []
    for _, steps in GROUP:
        normed = [0.0 if reward is None else (reward - mean(given)) / (stdev(given) + 1e-4) for reward, _ in steps]
        expected.append([sum(normed[turn:]) for turn in range(len(steps))])
    for one, other in zip(of_turns(scored(), advantage="process_rewards"), expected, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("advantage", ["step_returns", "process_rewards"])
def test_without_rewards_of_steps_the_last_turn_earns_that_of_the_rollout(advantage: str) -> None:
    plain = [(reward, [(None, length) for _, length in steps[:2]]) for reward, steps in GROUP if len(steps) > 1]
    keys: dict[str, Any] = {"returns_scale": True} if advantage == "step_returns" else {}
    found = of_turns(scored(plain), advantage=advantage, **keys)
    expected = of_turns(scored(plain), advantage="grpo_std")
    assert [turn for one in found for turn in one] == pytest.approx([turn for one in expected for turn in one])


def test_a_steps_reward_is_its_own_also_where_it_is_that_of_the_rollout() -> None:
    group = scored([(1.0, [(1.0, 1), (None, 1), (0.0, 1)]), (0.5, [(None, 1), (None, 1)])])
    assert [own_step_rewards(state) for state in group.states] == [{0: 1.0, 2: 0.0}, {}]
    assert [step["reward"] for step in group.states[1]["trajectory"]] == [0.5, 0.5]


def test_a_rollout_without_a_turn_and_a_turn_without_tokens_have_no_tokens_to_credit() -> None:
    group = scored([(1.0, [(0.5, 2), (0.5, 1)]), (0.0, [])])
    config = AlgorithmConfig(advantage="step_returns")
    found = assemble([group], config, RewardShaper(config), temperature=1.0)
    assert np.isfinite(found.batch.advantages).all()
    assert found.advantages[0][1] == 0


@pytest.mark.parametrize("reward", [float("nan"), "much"])
def test_a_steps_reward_that_is_no_number_is_named(reward: Any) -> None:
    with pytest.raises(TrainingError, match="turn 2 of task 7 the reward"):
        of_turns(scored([(1.0, [(0.0, 1), (reward, 1)])]), advantage="step_returns")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"discount": 0.9}, "discount would have no effect: advantage = grpo"),
        ({"advantage": "process_rewards", "returns_outcome": "whole"}, "returns_outcome would have no effect"),
        ({"advantage": "step_returns", "returns_baseline": "none", "returns_scale": True}, "set returns_baseline"),
        ({"advantage": "step_returns", "reward_norm": "group"}, "is made of the rewards of steps"),
        ({"advantage": "step_returns", "discount": 1.1}, "less than or equal to 1"),
    ],
)
def test_what_has_no_effect_or_meaning_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        AlgorithmConfig(**keys)
