"""Scored groups to one packed batch: what carries which advantage, and what carries none."""

import pytest

from whet.errors import TrainingError
from whet.rl.assembly import assemble
from whet.rl.curriculum import Task
from whet.rl.group import Group
from whet.rl.losses.config import AlgorithmConfig
from whet.rl.shaping import RewardShaper


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
    return Group(0, Task(0, 0, 0, 0), "e", list(states), own_advantages)


def assembled(*groups, **settings):
    config = AlgorithmConfig(**settings)
    return assemble(groups, config, RewardShaper(config), temperature=1.0)


PAIR = group(rollout(1.0, [3, 4]), rollout(0.0, [5], truncated=True))


def test_every_sampled_token_carries_its_rollouts_advantage():
    found = assembled(PAIR)
    assert found.advantages == [[0.5, -0.5]]
    assert found.batch.advantages.tolist() == [0, 0, 0.5, 0.5, 0, 0, -0.5]
    assert found.metrics == {}


def test_a_truncated_rollout_that_is_masked_carries_no_loss_and_still_counts_in_the_baseline():
    found = assembled(PAIR, mask_truncated=True)
    assert found.advantages == [[0.5, -0.5]]
    assert found.batch.trained.tolist() == [False, False, True, True, False, False, False]
    assert found.batch.sequences == 2
    assert found.batch.trained_tokens == 2
    assert [int(sequence.trained.sum()) for sequence in found.sequences] == [2, 1]
    assert found.metrics == {"rollouts/masked_token_frac": pytest.approx(1 / 3)}


def test_a_batch_of_nothing_but_masked_rollouts_stops_the_run_and_says_why():
    with pytest.raises(TrainingError, match="every rollout of the batch was cut off"):
        assembled(group(rollout(1.0, [3], truncated=True)), mask_truncated=True)


def test_advantages_are_made_of_shaped_rewards():
    found = assembled(PAIR, length_penalty=0.5, length_penalty_start=1, length_penalty_full=2)
    assert found.advantages == [[0.25, -0.25]]  # of 1 - 0.5 and 0


def test_an_environments_own_advantages_are_taken_as_they_are():
    own = group(rollout(1.0, [3], advantage=7.0), own_advantages=True)
    assert assembled(own, reward_clip=(0, 0.5)).advantages == [[7.0]]
