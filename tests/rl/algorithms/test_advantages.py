"""Advantages, each against an example worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.rl.algorithms import ScoredGroup, advantages_of, algorithms, names_of
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.types import State

GROUPS = [[1.0, 0.0, 0.0, 1.0], [0.5, 1.0]]
OF_A_GROUP = [name for name in names_of("advantages") if not algorithms()[name].needs_whole_batch]


def advantages(name, rewards_by_group):
    """Of rollouts of one turn and one token."""
    state = State({"trajectory": [{"tokens": {"completion_ids": [1]}, "reward": None}]})
    constants = AlgorithmConfig(advantage=name).advantage_constants
    groups = [ScoredGroup(np.array(rewards, float), [state] * len(rewards)) for rewards in rewards_by_group]
    return [[float(value.sum()) for value in values] for values in advantages_of(groups, name, constants)]


def close(found, expected):
    return all(np.allclose(f, e, atol=2e-4) for f, e in zip(found, expected, strict=True))


def test_grpo_only_centres():
    assert close(advantages("grpo", GROUPS), [[0.5, -0.5, -0.5, 0.5], [-0.25, 0.25]])


def test_grpo_std_divides_by_the_groups_sample_deviation():
    # sqrt(4 * 0.25 / 3) = 0.57735, sqrt(2 * 0.0625 / 1) = 0.35355
    assert close(advantages("grpo_std", GROUPS), [[0.8659, -0.8659, -0.8659, 0.8659], [-0.7069, 0.7069]])


def test_rloo_compares_each_rollout_with_the_mean_of_the_others():
    assert close(advantages("rloo", GROUPS), [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [-0.5, 0.5]])


def test_reinforce_pp_compares_with_the_whole_batch():
    # mean 3.5 / 6 = 0.58333, deviation sqrt(3.25 / 6 - 0.58333^2) = 0.44876
    assert close(advantages("reinforce_pp", GROUPS), [[0.9284, -1.2997, -1.2997, 0.9284], [-0.1857, 0.9284]])


def test_max_rl_weighs_rarely_solved_tasks_more():
    assert close(advantages("max_rl", [[1, 0, 0, 0], [1, 1, 1, 0]]), [[3, -1, -1, -1], [1 / 3, 1 / 3, 1 / 3, -1]])


def test_max_rl_learns_nothing_from_a_group_that_earned_nothing():
    assert close(advantages("max_rl", [[0, 0], [-1, 1]]), [[0, 0], [0, 0]])


@pytest.mark.parametrize("name", names_of("advantages"))
def test_a_group_of_one_is_finite(name):
    (only,) = advantages(name, [[0.3]])
    assert np.isfinite(only).all()


@pytest.mark.parametrize("name", OF_A_GROUP)
@given(rewards=st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(name, rewards):
    found = np.array(advantages(name, [rewards])[0])
    assert abs(found.sum()) < 1e-6 * max(1, abs(found).max()) * len(rewards)
    assert (np.diff(found[np.argsort(rewards)]) >= -1e-9).all()


@pytest.mark.parametrize("name", OF_A_GROUP)
def test_equal_rewards_teach_nothing(name):
    assert np.abs(advantages(name, [[0.7] * 4])[0]).max() < 1e-9
