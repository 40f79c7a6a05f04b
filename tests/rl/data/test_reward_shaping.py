"""What becomes of rewards before they are advantages, each against an example worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.rl.data.assembly import Moments, RewardShaper, share_of_length, share_repeated
from whet.rl.sections.algorithm import AlgorithmConfig

REWARDS = [np.array([0.0, 1.0]), np.array([3.0, 4.0])]
TURNS = [[[[1, 2, 3]], [[1, 1, 1, 1]]], [[[1, 2], [1, 2]], [[5] * 10]]]


def shaped(rewards=REWARDS, shaper=None, **settings):
    found, metrics = (shaper or RewardShaper(AlgorithmConfig(**settings))).shape(rewards, TURNS)
    return [rewards_G.tolist() for rewards_G in found], metrics


def test_without_settings_the_very_same_rewards_come_back():
    found, metrics = RewardShaper(AlgorithmConfig()).shape(REWARDS, TURNS)
    assert all(f is r for f, r in zip(found, REWARDS, strict=True))
    assert metrics == {}


def test_rewards_are_cut():
    assert shaped(reward_clip=(0.5, 3.5))[0] == [[0.5, 1.0], [3.0, 3.5]]


def test_length_is_punished_from_its_start_and_wholly_at_its_end():
    assert [share_of_length(tokens, 2, 6) for tokens in (1, 2, 3, 6, 9)] == [0, 0, 0.25, 1, 1]


def test_the_length_of_a_rollout_is_what_it_sampled_in_all_its_turns():
    found, metrics = shaped(length_penalty=2.0, length_penalty_start=2, length_penalty_full=6)
    assert found == [[-0.5, 0.0], [2.0, 2.0]]  # 3, 4, 2 + 2 and 10 tokens
    assert metrics["reward/length_penalty"] == (0.5 + 1 + 1 + 2) / 4


def test_repetition_is_the_share_of_ngrams_that_were_there_before_and_does_not_reach_over_turns():
    assert share_repeated([[1, 1, 1, 1]], 2) == pytest.approx(2 / 3)  # 11 three times
    assert share_repeated([[1, 2], [1, 2]], 2) == 0.5
    assert share_repeated([[1], [2]], 2) == 0
    assert shaped(repetition_penalty=0.3, repetition_ngram=2)[0][0] == [0.0, pytest.approx(1 - 0.3 * 2 / 3)]


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("group", [[-1, 1], [-1, 1]]),  # deviation 1/2 in both groups
        ("batch", [[-2 / 2.5**0.5, -1 / 2.5**0.5], [1 / 2.5**0.5, 2 / 2.5**0.5]]),  # mean 2, variance 10 / 4
        ("running", [[-2 / 2.5**0.5, -1 / 2.5**0.5], [1 / 2.5**0.5, 2 / 2.5**0.5]]),
    ],
)
def test_rewards_are_normalised_over_the_group_the_batch_or_the_run(norm, expected):
    np.testing.assert_allclose(shaped(reward_norm=norm)[0], expected, atol=1e-3)


def test_running_statistics_are_those_of_all_rewards_so_far():
    shaper = RewardShaper(AlgorithmConfig(reward_norm="running"))
    shaped(shaper=shaper)
    found, _ = shaped([np.array([10.0, 10.0])] * 2, shaper=shaper)
    everything = np.array([0, 1, 3, 4, 10, 10, 10, 10])
    np.testing.assert_allclose(found, (10 - everything.mean()) / (everything.std() + 1e-4), rtol=1e-9)


def test_running_statistics_survive_a_checkpoint():
    first, second = (RewardShaper(AlgorithmConfig(reward_norm="running")) for _ in range(2))
    shaped(shaper=first)
    second.load_state_dict(first.state_dict())
    assert shaped(shaper=second) == shaped(shaper=first)
    assert RewardShaper(AlgorithmConfig()).state_dict() == {}


def test_rewards_are_cut_then_punished_then_normalised():
    found, _ = shaped(
        reward_clip=(0, 3), length_penalty=2.0, length_penalty_start=2, length_penalty_full=6, reward_norm="group"
    )
    np.testing.assert_allclose(found, [[-1, 1], [1, -1]], atol=1e-3)  # of -0.5, 0 and 2, 1


@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=5), min_size=1, max_size=5))
def test_moments_joined_are_those_of_everything_together(parts):
    joined = Moments()
    for part in parts:
        joined = joined.joined(Moments.of(np.array(part)))
    everything = np.concatenate(parts)
    assert joined.count == len(everything)
    assert joined.mean == pytest.approx(everything.mean(), abs=1e-9)
    assert joined.squares == pytest.approx(everything.var() * len(everything), abs=1e-6)
