"""A batch is divided in whole groups, evenly, and put together again in its own order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whet.inference.token_sets import TokenSets
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.forward.layout import micro_batches
from whet.rl.learner.protocol import LossOutput, TokenValues
from whet.rl.learner.ranks.rank_group import divide


def sequence(rollout, prompt, answer):
    ids = np.array([*prompt, *answer], np.int32)
    trained = np.arange(len(ids)) >= len(prompt)
    return TokenSequence(
        ids=ids,
        trained=trained,
        logprobs=np.where(trained, -ids / 10, 0).astype(np.float32),
        versions=np.where(trained, 3, -1).astype(np.int32),
        temperature=1.0,
        rollout=rollout,
        kept=TokenSets.of([np.arange(one % 4, dtype=np.int32) for one in ids]),
        experts=np.stack([ids, ids + 1], axis=1).reshape(-1, 1, 2).astype(np.int16),
    )


@st.composite
def batches(draw):
    """Groups with a prompt of their own each, some of whose rollouts have several sequences."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    made = []
    for group, size in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))):
        prompt = [group, *rng.integers(0, 50, rng.integers(1, 9))]
        for member in range(size):
            for _ in range(rng.integers(1, 3)):
                made.append(sequence(f"{group} {member}", prompt, rng.integers(0, 50, rng.integers(1, 9))))
    order = rng.permutation(len(made)) if draw(st.booleans()) else range(len(made))
    return pack([made[at] for at in order], [float(at) for at in order])


@given(batches(), st.integers(1, 5))
def test_every_token_is_in_one_part_with_all_that_belongs_to_it(batch, ranks):
    division = divide(batch, ranks)
    assert len(division.parts) == len(division.places) == ranks
    np.testing.assert_array_equal(np.sort(np.concatenate(division.places)), np.arange(len(batch.ids)))
    rollout_T = np.array(batch.rollouts)[batch.sequence_of_token]
    for part, place in zip(division.parts, division.places, strict=True):
        if part is None:
            assert not len(place)
            continue
        for name in ("ids", "trained", "logprobs", "advantages", "versions", "temperatures", "experts"):
            np.testing.assert_array_equal(getattr(part, name), getattr(batch, name)[place])
        np.testing.assert_array_equal(part.kept.ids, batch.kept.take(place).ids)
        np.testing.assert_array_equal(np.array(part.rollouts)[part.sequence_of_token], rollout_T[place])


@given(batches(), st.integers(1, 5))
def test_a_group_stays_together_and_its_prompt_is_computed_once(batch, ranks):
    division = divide(batch, ranks)
    of_rank = [{name.split()[0] for name in part.rollouts} for part in division.parts if part is not None]
    assert sum(map(len, of_rank)) == len(set().union(*of_rank))
    computed = [micro_batches(part, 1 << 20) for part in division.parts if part is not None]
    together = micro_batches(batch, 1 << 20)
    assert sum(len(one.tokens) for layouts in computed for one in layouts) == sum(len(one.tokens) for one in together)


@given(batches(), st.integers(1, 5))
def test_no_rank_has_more_than_the_least_loaded_and_one_group(batch, ranks):
    division = divide(batch, ranks)
    computed = [
        sum(len(one.tokens) for one in micro_batches(part, 1 << 20)) if part is not None else 0
        for part in division.parts
    ]
    longest = max(
        sum(len(one.tokens) for one in micro_batches(part, 1 << 20))
        for part in divide(batch, 50).parts
        if part is not None
    )
    shared = len(batch.ids) - sum(computed)  # of answers that are equal, which no load foresees
    assert max(computed) - min(computed) <= longest + shared


@given(batches(), st.integers(1, 5))
def test_results_are_joined_in_the_order_of_the_batch(batch, ranks):
    division = divide(batch, ranks)
    outputs = [
        LossOutput(
            loss=float(len(place)),
            tokens=0 if part is None else part.trained_tokens,
            sums={} if part is None else {"kl": float(part.advantages.sum())},
            values=TokenValues(place.astype(np.float32), place % 3 == 0),
            flops=2.0,
            peak_flops=5.0,
        )
        for part, place in zip(division.parts, division.places, strict=True)
    ]
    joined, every_T = division.join(outputs), np.arange(len(batch.ids))
    assert (joined.loss, joined.tokens) == (len(batch.ids), batch.trained_tokens)
    assert joined.sums["kl"] == batch.advantages.sum()
    assert (joined.flops, joined.peak_flops) == (2.0 * ranks, 5.0 * ranks)
    np.testing.assert_array_equal(joined.values.logprobs_T, every_T)
    np.testing.assert_array_equal(joined.values.clipped_T, every_T % 3 == 0)
    np.testing.assert_array_equal(division.join_logprobs([p.astype(np.float32) for p in division.places]), every_T)


@given(batches(), st.integers(1, 5))
def test_the_same_batch_is_always_divided_alike(batch, ranks):
    first, second = divide(batch, ranks), divide(batch, ranks)
    assert all(np.array_equal(a, b) for a, b in zip(first.places, second.places, strict=True))


def test_sequences_of_one_rollout_stay_together_whatever_they_begin_with():
    batch = pack([sequence("a", [1], [2, 3]), sequence("b", [4], [5]), sequence("a", [4, 9], [6, 7])])
    assert [part and part.rollouts for part in divide(batch, 2).parts] == [("a", "a"), ("b",)]
    joining = pack([sequence("a", [1], [2]), sequence("b", [4], [5]), sequence("a", [4], [6])])
    assert [part and part.rollouts for part in divide(joining, 2).parts] == [("a", "b", "a"), None]
