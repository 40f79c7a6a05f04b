"""A packed batch holds its sequences end to end and knows what is trained."""

import numpy as np
import pytest

from whet.rl.data.batch import TokenSequence, pack


def sequence(ids, trained_from, rollout="r", temperature=1.0):
    trained = np.arange(len(ids)) >= trained_from
    return TokenSequence(
        ids=np.asarray(ids, np.int32),
        trained=trained,
        logprobs=np.where(trained, -1.0, 0.0).astype(np.float32),
        versions=np.where(trained, 3, -1).astype(np.int32),
        temperature=temperature,
        rollout=rollout,
    )


def test_columns_line_up_with_the_sequences_they_came_from():
    batch = pack([sequence([1, 2, 3], 1, "a", 0.5), sequence([4, 5], 1, "b")], [2.0, -1.0])
    assert batch.ids.tolist() == [1, 2, 3, 4, 5]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.lengths.tolist() == [3, 2]
    assert batch.sequence_of_token.tolist() == [0, 0, 0, 1, 1]
    assert batch.advantages.tolist() == [0, 2, 2, 0, -1]
    assert batch.versions.tolist() == [-1, 3, 3, -1, 3]
    assert batch.temperatures.tolist() == [0.5, 0.5, 0.5, 1.0, 1.0]
    assert batch.rollouts == ("a", "b")
    assert (batch.sequences, batch.trained_tokens) == (2, 3)


def test_advantages_may_differ_from_token_to_token_but_never_reach_a_prompt():
    batch = pack([sequence([1, 2, 3], 1)], [np.array([9.0, 1.0, 2.0])])
    assert batch.advantages.tolist() == [0, 1, 2]


def test_without_advantages_every_sampled_token_weighs_one():
    assert pack([sequence([1, 2, 3], 2)]).advantages.tolist() == [0, 0, 1]


def test_a_first_token_cannot_be_trained():
    with pytest.raises(AssertionError):
        pack([sequence([1, 2], 0)])


def test_there_must_be_an_advantage_for_every_sequence():
    with pytest.raises(ValueError, match="shorter"):
        pack([sequence([1, 2], 1)] * 2, [1.0])
