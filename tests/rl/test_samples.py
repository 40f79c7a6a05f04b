"""Rollouts become token sequences without a token being lost, moved or made up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import TrainingError
from whet.rl.samples import TokenSequence, sequences_of


def turn(prompt, completion, versions=None, mask=None):
    return {
        "tokens": {
            "prompt_ids": prompt,
            "prompt_mask": [0] * len(prompt),
            "completion_ids": completion,
            "completion_mask": [1] * len(completion) if mask is None else mask,
            "completion_logprobs": [-0.125 * token for token in completion],
            "policy_version": [[0, len(completion)]] if versions is None else versions,
        }
    }


def sequences(*turns):
    return sequences_of(turns, temperature=0.7, rollout="r")


def test_one_turn_is_one_sequence_trained_on_its_completion():
    (sequence,) = sequences(turn([1, 2], [3, 4], versions=[[5, 1], [6, 1]]))
    assert sequence.ids.tolist() == [1, 2, 3, 4]
    assert sequence.trained.tolist() == [False, False, True, True]
    assert sequence.logprobs.tolist() == [0, 0, -0.375, -0.5]
    assert sequence.versions.tolist() == [-1, -1, 5, 6]
    assert (sequence.temperature, sequence.rollout) == (0.7, "r")


def test_a_turn_that_extends_the_history_is_merged_and_a_tools_tokens_are_not_trained():
    (sequence,) = sequences(turn([1, 2], [3]), turn([1, 2, 3, 9, 9], [4]), turn([1, 2, 3, 9, 9, 4, 8], [5, 6]))
    assert sequence.ids.tolist() == [1, 2, 3, 9, 9, 4, 8, 5, 6]
    assert np.flatnonzero(sequence.trained).tolist() == [2, 5, 7, 8]


def test_a_turn_with_another_history_starts_a_branch_of_its_own():
    first, second = sequences(turn([1, 2], [3, 4]), turn([1, 7], [8]))
    assert first.ids.tolist() == [1, 2, 3, 4]
    assert second.ids.tolist() == [1, 7, 8]
    assert second.trained.tolist() == [False, False, True]


def test_tokens_of_a_completion_that_were_not_sampled_carry_neither_loss_nor_version():
    (sequence,) = sequences(turn([1], [2, 3, 4], mask=[1, 0, 1]))
    assert sequence.trained.tolist() == [False, True, False, True]
    assert sequence.versions.tolist() == [-1, 0, -1, 0]
    assert sequence.logprobs[2] == 0


def test_versions_are_unknown_where_the_server_does_not_say():
    (sequence,) = sequences(turn([1], [2, 3], versions=[]))
    assert sequence.versions.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"tokens": None}, "rollout r, turn 2: the turn has no token ids"),
        (turn([], [1]), "rollout r, turn 2: the prompt is empty"),
        (turn([1, 2, 3], [4], versions=[[0, 2]]), "1 sampled ids but 2 values in policy_version"),
        (turn([1, 2, 3], [4], mask=[1, 1]), "1 sampled ids but 2 values in completion_mask"),
    ],
)
def test_tokens_that_do_not_fit_together_are_refused_by_rollout_and_turn(step, message):
    with pytest.raises(TrainingError, match=message.replace("(", r"\(")):
        sequences(turn([1, 2], [3]), step)


tokens = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.booleans(), tokens, tokens), min_size=1, max_size=6))
def test_every_sampled_token_arrives_once_in_order_with_its_logprob_and_version(script):
    """Invariant 1: whatever the turns are, continued or branching."""
    history: list[int] = []
    turns = []
    expected = []
    for version, (continues, new, sampled) in enumerate(script):
        prompt = (history if continues else []) + new
        turns.append(turn(prompt, sampled, versions=[[version, len(sampled)]]))
        history = prompt + sampled
        expected += [(token, np.float32(-0.125 * token), version) for token in sampled]
    found = sequences(*turns)
    arrived = [
        (int(s.ids[i]), s.logprobs[i], int(s.versions[i])) for s in found for i in np.flatnonzero(s.trained).tolist()
    ]
    assert arrived == expected
    assert all((s.logprobs[~s.trained] == 0).all() and (s.versions[~s.trained] == -1).all() for s in found)


def test_a_demonstration_was_sampled_by_nobody():
    sequence = TokenSequence.demonstration([1, 2, 3], [False, True, True], rollout="d")
    assert sequence.versions.tolist() == [-1, -1, -1]
    assert len(sequence) == 3
