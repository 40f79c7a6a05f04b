"""Rollouts become token sequences without a token being lost, moved or made up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import TrainingError
from whet.inference.token_sets import TokenSets
from whet.rl.data.batch import TokenSequence, sequences_of


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


def test_conversations_that_take_turns_are_one_sequence_each_in_the_order_in_which_they_began():
    first, second = sequences(
        turn([1, 2], [3]),
        turn([7, 2], [8]),
        turn([1, 2, 3, 4], [5]),
        turn([7, 2, 8, 4], [9]),
        turn([1, 2, 3, 4, 5], [6]),
    )
    assert first.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert second.ids.tolist() == [7, 2, 8, 4, 9]
    assert np.flatnonzero(first.trained).tolist() == [2, 4, 5]
    assert np.flatnonzero(second.trained).tolist() == [2, 4]


def test_a_turn_that_extends_several_branches_joins_the_longest_and_of_equals_the_latest():
    short, long = sequences(turn([1], [2]), turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 3, 4], [5]))
    assert (short.ids.tolist(), long.ids.tolist()) == ([1, 2], [1, 2, 3, 4, 5])


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


def sampled_by_turn(found):
    """(version, token, logprob) of everything trained, by version, which the tests number the turns with."""
    arrived = [
        (int(s.versions[i]), int(s.ids[i]), s.logprobs[i]) for s in found for i in np.flatnonzero(s.trained).tolist()
    ]
    return sorted(arrived, key=lambda entry: entry[0])


@given(st.lists(st.tuples(st.integers(0, 6), tokens, tokens), min_size=1, max_size=8))
def test_every_sampled_token_arrives_once_in_order_with_its_logprob_version_and_context(script):
    """Invariant 1 of docs/design/training-loop.md: whatever the turns are, continued, interleaved or branching."""
    histories: list[list[int]] = []
    turns = []
    expected = []
    for number, (after, new, sampled) in enumerate(script):
        prompt = (histories[after] if after < len(histories) else []) + new
        turns.append(turn(prompt, sampled, versions=[[number, len(sampled)]]))
        histories.append(prompt + sampled)
        expected += [(number, token, np.float32(-0.125 * token)) for token in sampled]
    found = sequences(*turns)
    assert sampled_by_turn(found) == expected
    for number, history in enumerate(histories):
        (owner,) = [s for s in found if number in s.versions]
        assert owner.ids[: len(history)].tolist() == history
    firsts = [int(s.versions[s.trained].min()) for s in found]
    assert firsts == sorted(firsts)
    assert all((s.logprobs[~s.trained] == 0).all() and (s.versions[~s.trained] == -1).all() for s in found)


CONVERSATION = st.tuples(st.sampled_from(["begin", "go on", "fork"]), st.integers(0, 9), st.integers(0, 99), tokens)


@given(st.lists(CONVERSATION, min_size=1, max_size=14))
def test_interleaved_conversations_and_forks_are_one_sequence_each(script):
    conversations: list[list[int]] = []
    turns = []
    for number, (what, which, where, sampled) in enumerate(script):
        unheard_of = 1000 + number
        if what == "begin" or not conversations:
            conversations.append([unheard_of])
            chosen = -1
        elif what == "go on":
            chosen = which % len(conversations)
            conversations[chosen].append(unheard_of)
        else:
            history = conversations[which % len(conversations)]
            conversations.append([*history[: where % len(history)], unheard_of])
            chosen = -1
        turns.append(turn(list(conversations[chosen]), sampled))
        conversations[chosen] += sampled
    assert [sequence.ids.tolist() for sequence in sequences(*turns)] == conversations


def sampled(step, **given):
    return {"tokens": {**step["tokens"], **given}}


def test_each_turn_keeps_the_temperature_it_was_sampled_at():
    (sequence,) = sequences(
        turn([1, 2], [3]),
        sampled(turn([1, 2, 3, 9], [4, 5]), sampling={"temperature": 0.3}),
        sampled(turn([1, 2, 3, 9, 4, 5, 9], [6]), sampling={"temperature": 0}),
    )
    assert sequence.temperature[sequence.trained].tolist() == pytest.approx([0.7, 0.3, 0.3, 1.0])


def test_logprobs_within_cuts_are_those_of_what_was_left_and_other_turns_keep_theirs():
    kept = TokenSets.of([np.array([3, 8], np.int32), np.array([4], np.int32)])
    cut = sampled(turn([1, 2], [3, 4]), kept_mass=[0.5, 0.25], kept=kept, sampling={"temperature": 1.0, "top_k": 2})
    turns = [cut, turn([1, 2, 3, 4, 9], [5])]
    (sequence,) = sequences_of(turns, temperature=1.0, rollout="r", renormalise=True)
    expected = [-0.375 - np.log(0.5), -0.5 - np.log(0.25), -0.625]
    np.testing.assert_allclose(sequence.logprobs[sequence.trained], expected, rtol=1e-6)
    assert sequence.kept.counts.tolist() == [0, 0, 2, 1, 0, 0]
    assert sequence.kept.ids.tolist() == [3, 8, 4]
    assert sequence.cut_mass.tolist() == [0, 0, 0.5, 0.75, 0, 0]
    (plain,) = sequences_of(turns, temperature=1.0, rollout="r")
    assert plain.kept is None
    assert plain.logprobs[plain.trained].tolist() == [-0.375, -0.5, -0.625]
    assert plain.cut_mass.tolist() == sequence.cut_mass.tolist()


@pytest.mark.parametrize(
    ("sampling", "named"),
    [({"temperature": 1.0, "top_p": 0.9}, "top_p = 0.9"), ({"temperature": 0}, "temperature = 0")],
)
def test_cuts_of_an_engine_that_does_not_say_what_they_left_are_refused_by_name(sampling, named):
    turns = [turn([1, 2], [3]), sampled(turn([1, 2, 3], [4]), sampling=sampling)]
    assert len(sequences(*turns)) == 1
    with pytest.raises(TrainingError, match=f"rollout r, turn 2: it was sampled with {named}, and its engine does not"):
        sequences_of(turns, temperature=1.0, rollout="r", renormalise=True)


def test_a_demonstration_was_sampled_by_nobody():
    sequence = TokenSequence.demonstration([1, 2, 3], [False, True, True], rollout="d")
    assert sequence.versions.tolist() == [-1, -1, -1]
    assert len(sequence) == 3


def routed(prompt_ids, completion_ids, first):
    """A turn whose fed tokens went to experts `first`, `first` + 1, ... in one layer of one expert a token."""
    fed = len(prompt_ids) + len(completion_ids) - 1
    experts = np.arange(first, first + fed).reshape(fed, 1, 1)
    return {"tokens": {**turn(prompt_ids, completion_ids)["tokens"], "routed_experts": experts}}


def test_experts_of_earlier_turns_stay_and_later_turns_add_theirs():
    steps = [routed([1, 2], [3, 4], 10), routed([1, 2, 3, 4, 5], [6], 20)]
    (sequence,) = sequences_of(steps, temperature=1.0, rollout="r")
    assert sequence.experts[:, 0, 0].tolist() == [10, 11, 12, 23, 24, -1]


def test_experts_of_another_number_of_tokens_are_refused():
    step = routed([1, 2], [3], 0)
    step["tokens"]["routed_experts"] = np.zeros((3, 1, 1), np.int16)
    with pytest.raises(TrainingError, match="2 tokens were fed to the model but 3 values in routed_experts"):
        sequences_of([step], temperature=1.0, rollout="r")
