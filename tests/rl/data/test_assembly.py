"""Scored groups to packed tokens: what carries which advantage, and what carries none; at once, or part by part."""

import asyncio
from typing import get_args

import pytest

from whet.errors import TrainingError
from whet.rl.algorithms import RewardNorm, algorithms, names_of
from whet.rl.data.assembly import RewardShaper, assemble, assembly_metrics, require_tokens
from whet.rl.data.curriculum import DrawnTask
from whet.rl.loop.group import Group
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.rubrics.rubric import Rubric
from whet.types import State


def rollout(reward, completion, *, truncated=False, advantage=None):
    tokens = {
        "prompt_ids": [1, 2],
        "completion_ids": completion,
        "completion_mask": [1] * len(completion),
        "completion_logprobs": [-1.0] * len(completion),
        "policy_version": [[0, len(completion)]],
    }
    state = {"example_id": 0, "reward": reward, "is_truncated": truncated, "trajectory": [{"tokens": tokens}]}
    return state if advantage is None else {**state, "advantage": advantage}


def group(*states, own_advantages=False):
    return Group(0, DrawnTask(0, 0, 0, 0), "e", list(states), own_advantages)


def assembled(*groups, **settings):
    config = AlgorithmConfig(**settings)
    return assemble(groups, config, RewardShaper(config), temperature=1.0)


def metrics(*parts, **settings):
    return assembly_metrics(parts, AlgorithmConfig(**settings), temperature=1.0)


PAIR = group(rollout(1.0, [3, 4]), rollout(0.0, [5], truncated=True))


def test_every_sampled_token_carries_its_rollouts_advantage():
    found = assembled(PAIR)
    assert found.advantages == [[0.5, -0.5]]
    assert found.batch.advantages.tolist() == [0, 0, 0.5, 0.5, 0, 0, -0.5]
    assert metrics(found) == {}


def test_a_truncated_rollout_that_is_masked_carries_no_loss_and_still_counts_in_the_baseline():
    found = assembled(PAIR, mask_truncated=True)
    assert found.advantages == [[0.5, -0.5]]
    assert found.batch.trained.tolist() == [False, False, True, True, False, False, False]
    assert found.batch.sequences == 2
    assert found.batch.trained_tokens == 2
    assert [int(sequence.trained.sum()) for sequence in found.sequences] == [2, 1]
    assert metrics(found, mask_truncated=True) == {"rollouts/masked_token_frac": pytest.approx(1 / 3)}


def test_a_batch_of_nothing_but_masked_rollouts_stops_the_run_and_says_why():
    config = AlgorithmConfig(mask_truncated=True)
    masked = assembled(group(rollout(1.0, [3], truncated=True)), mask_truncated=True)
    require_tokens([masked, assembled(PAIR, mask_truncated=True)], config)
    with pytest.raises(TrainingError, match="every rollout of the batch was cut off"):
        require_tokens([masked, masked], config)


@pytest.mark.parametrize("mask_truncated", [False, True])
@pytest.mark.parametrize("turns", [[], [[]]])
def test_a_batch_without_a_token_stops_the_run_and_says_why(turns, mask_truncated):
    states = [{**rollout(1.0, []), "trajectory": [rollout(1.0, turn)["trajectory"][0] for turn in turns]}] * 2
    nothing = assembled(group(*states), mask_truncated=mask_truncated)
    assert nothing.batch.trained_tokens == 0
    assert len(nothing.advantages[0]) == 2
    with pytest.raises(TrainingError, match="no rollout of the batch has a token"):
        require_tokens([nothing, nothing], AlgorithmConfig(mask_truncated=mask_truncated))
    require_tokens([nothing, assembled(PAIR)], AlgorithmConfig(mask_truncated=mask_truncated))


def test_advantages_are_made_of_shaped_rewards():
    found = assembled(PAIR, length_penalty=0.5, length_penalty_start=1, length_penalty_full=2)
    assert found.advantages == [[0.25, -0.25]]  # of 1 - 0.5 and 0


def test_an_environments_own_advantages_are_taken_as_they_are():
    own = group(rollout(1.0, [3], advantage=7.0), own_advantages=True)
    assert assembled(own, reward_clip=(0, 0.5)).advantages == [[7.0]]


def judged(*own):
    """A rollout of a turn for each advantage of its own; None: it has none."""
    steps, ids = [], [1, 2]
    for number, advantage in enumerate(own):
        (step,) = rollout(0.0, [10 + number] * 2)["trajectory"]
        step["tokens"]["prompt_ids"] = list(ids)
        steps.append({**step, "advantage": advantage, "reward": None})
        ids += [*step["tokens"]["completion_ids"], 9]
    return State({**rollout(None, []), "trajectory": steps, "error": None})


def test_turns_with_an_advantage_of_their_own_carry_it_and_the_others_the_rollouts():
    states = [judged(None, 5.0, 0.0), judged(None, -0.5, None), judged(0.0, None, None)]
    rewards = iter([1.0, 0.0, 0.5])
    asyncio.run(Rubric(funcs=[lambda: next(rewards)]).score_group(states))
    found = assembled(group(*states), advantage="rloo", reward_clip=(0.0, 0.75))
    first, second, third = found.advantages[0]
    assert (first, second, third) == pytest.approx((0.5, -0.625, 0.125))
    weights = found.batch.advantages[found.batch.trained].reshape(3, 3, 2)
    assert weights[..., 0].tolist() == weights[..., 1].tolist()
    expected = [first, 5.0, 0.0, second, -0.5, second, 0.0, third, third]
    assert weights[..., 0].flatten().tolist() == pytest.approx(expected)


def test_a_rubric_of_ones_own_may_set_advantages_of_steps_after_the_fact():
    class ByTurn(Rubric):
        async def score_group(self, states):
            await super().score_group(states)
            for state in states:
                state["trajectory"][-1]["advantage"] = 3.0

    states = [judged(None, None), judged(None, None)]
    rewards = iter([1.0, 0.0])
    asyncio.run(ByTurn(funcs=[lambda: next(rewards)]).score_group(states))
    batch = assembled(group(*states)).batch
    assert batch.advantages[batch.trained].tolist() == [0.5, 0.5, 3, 3, -0.5, -0.5, 3, 3]


@pytest.mark.parametrize(
    ("advantage", "reward_norm"),
    [
        (name, norm)
        for name in names_of("advantages")
        for norm in get_args(RewardNorm)
        if norm not in algorithms()[name].excludes_reward_norm and name != "gae"  # which makes advantages afterwards
    ],
)
def test_a_batch_is_learned_in_parts_where_that_makes_the_same_advantages_and_nowhere_else(advantage, reward_norm):
    settings = {"advantage": advantage, "reward_norm": reward_norm}
    groups = [group(rollout(1.0, [3, 4]), rollout(0.5, [5])), group(rollout(0.25, [3, 4]), rollout(0.0, [5]))]
    parts = [*assembled(groups[0], **settings).advantages, *assembled(groups[1], **settings).advantages]
    assert (parts == assembled(*groups, **settings).advantages) == AlgorithmConfig(**settings).learns_in_parts


def test_metrics_of_parts_are_those_of_the_whole():
    settings = {"length_penalty": 0.5, "length_penalty_start": 1, "length_penalty_full": 2, "mask_truncated": True}
    single = group(rollout(1.0, [3, 4, 5]))
    whole = metrics(assembled(PAIR, single, **settings), **settings)
    assert {"reward/length_penalty", "reward/shaped_mean", "rollouts/masked_token_frac"} == set(whole)
    parts = [assembled(PAIR, **settings), assembled(single, **settings)]
    assert metrics(*parts, **settings) == pytest.approx(whole)
