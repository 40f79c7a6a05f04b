"""Micro-batches cover every trained token once, compute what sequences share once, and stay inside their budget."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.forward import layout as layouts
from whet.rl.learner.forward.layout import micro_batches


def sequence(prompt, answer):
    trained = [False] * len(prompt) + [True] * len(answer)
    return TokenSequence.demonstration([*prompt, *answer], trained)


def blocks_of(layout):
    return [*layout.silent, *layout.speaking]


def runs(batch, layout):
    """For each run what it reads and what it adds, as ids."""
    for block in blocks_of(layout):
        for keys, before, length in zip(block.keys, block.before, block.lengths, strict=True):
            read = batch.ids[layout.tokens[keys[: before + length]]].tolist()
            yield read[:before], read[before:]


def test_what_answers_begin_with_is_computed_once():
    """The example in the module's docstring."""
    p, q, r, a, b, c, d, e, f = range(9)
    batch = pack([sequence([p, q, r], answer) for answer in ([a, b], [a, c, d], [e, f])])
    (layout,) = micro_batches(batch, 1000)
    assert list(runs(batch, layout)) == [([], [p, q]), ([p, q, r], [a, c]), ([p, q], [r, e])]
    predictors = batch.ids[layout.tokens[layout.predictors]][
        layout.predictor_of_distribution[layout.distribution_of_target]
    ]
    pairs = zip(predictors.tolist(), batch.ids[layout.targets].tolist(), strict=True)
    assert sorted(pairs) == sorted([(r, a), (r, a), (r, e), (a, b), (a, c), (c, d), (e, f)])


def test_equal_sequences_are_computed_once_and_each_keeps_its_targets():
    batch = pack([*[sequence([1, 2], [3, 4])] * 5, sequence([1, 2], [3])])
    (layout,) = micro_batches(batch, 1000)
    assert batch.ids[layout.tokens].tolist() == [1, 2, 3]
    assert sorted(layout.targets.tolist()) == np.flatnonzero(batch.trained).tolist()


def test_histories_that_branch_share_what_they_have_in_common():
    """As where a template drops what was thought: an earlier answer is trained in one branch and told in the other."""
    first = TokenSequence.demonstration([1, 2, 3, 4, 5], [False, False, True, True, True])
    later = TokenSequence.demonstration([1, 2, 3, 6, 7], [False, False, False, False, True])
    (layout,) = micro_batches(pack([later, first]), 1000)
    assert len(layout.tokens) == 5
    assert layout.positions.tolist() == [0, 1, 2, 3, 3]


def test_tokens_sent_to_different_experts_are_computed_apart():
    def routed(expert):
        found = sequence([1, 2], [3, 4])
        return TokenSequence(
            found.ids, found.trained, found.logprobs, found.versions, experts=np.full((4, 1, 1), expert, np.int16)
        )

    alike, apart = (micro_batches(pack([routed(0), routed(other)]), 1000)[0] for other in (0, 1))
    assert (len(alike.tokens), len(apart.tokens)) == (3, 6)


def test_tokens_that_predict_nothing_stand_first():
    batch = pack([sequence([1, 2, 3], [4, 5]), sequence([1, 2, 6], [7])])
    (layout,) = micro_batches(batch, 1000)
    silent = sum(len(block.where) for block in layout.silent)
    assert batch.ids[layout.tokens[:silent]].tolist() == [1, 2]
    assert layout.predictors.min() == silent


def test_tokens_after_the_last_trained_one_are_not_computed():
    batch = pack([TokenSequence.demonstration([1, 2, 3, 4, 5], [False, True, False, False, False])])
    (layout,) = micro_batches(batch, 1000)
    assert batch.ids[layout.tokens].tolist() == [1]


def test_a_sequence_with_nothing_to_learn_is_not_computed():
    assert micro_batches(pack([TokenSequence.demonstration([1, 2], [False, False])]), 100) == []


def test_runs_of_very_different_shape_are_not_padded_to_one():
    long, short = 200, 2
    rows = [sequence([row], range(100, 100 + (long if row == 0 else short))) for row in range(40)]
    (layout,) = micro_batches(pack(rows), 10_000)
    places = sum(block.queries.size * block.keys.shape[1] for block in blocks_of(layout))
    assert places < 2 * long**2 + layouts.BLOCK_PLACES < 40 * long**2


def test_many_that_add_little_to_something_long_are_not_all_read_at_once():
    """Each reads all of it, so what is gathered would grow without bound while hardly a token is computed."""
    long, budget = range(103), 400  # with the first token of an answer a whole number of `MULTIPLE`s
    batch = pack([sequence(long, [100 + number, 1]) for number in range(200)])
    found = micro_batches(batch, budget)
    gathered = [sum(block.keys.size for block in layout.speaking) for layout in found]
    assert layouts.READS * budget / 2 < max(gathered) <= layouts.READS * budget
    assert sum(len(layout.targets) for layout in found) == 400


@st.composite
def batches(draw):
    found = []
    for _ in range(draw(st.integers(1, 5))):
        prompt = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
        for _ in range(draw(st.integers(1, 4))):
            rest = draw(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
            ids = [*prompt, *(token for token, _ in rest)]
            found.append(TokenSequence.demonstration(ids, [False] * len(prompt) + [mark for _, mark in rest]))
    return pack(found)


@settings(deadline=None)
@given(batches(), st.integers(1, 80), st.sampled_from([0, 20, layouts.BLOCK_PLACES]))
def test_whatever_the_budget_every_trained_token_is_predicted_once_from_its_own_past(batch, budget, block_places):
    usual, layouts.BLOCK_PLACES = layouts.BLOCK_PLACES, block_places
    try:
        found = micro_batches(batch, budget)
    finally:
        layouts.BLOCK_PLACES = usual
    targets = np.concatenate([layout.targets for layout in found]) if found else np.zeros(0, int)
    assert sorted(targets.tolist()) == np.flatnonzero(batch.trained).tolist()
    for layout in found:
        whole = len(set(batch.sequence_of_token[layout.targets].tolist()))
        assert len(layout.tokens) <= budget or whole == 1
        past = {}  # what each token was computed from, itself included
        first = 0
        for block in blocks_of(layout):
            own = np.flatnonzero(np.isin(np.arange(block.queries.size), block.where))
            assert sorted([*block.where, *block.padding]) == list(range(block.queries.size))
            for place in own.tolist():
                row, query = divmod(place, block.queries.shape[1])
                token = first + int(block.queries[row, query])
                seen = block.keys[row, : block.before[row] + query + 1]
                assert seen[-1] == token
                past[token] = batch.ids[layout.tokens[seen]].tolist()
            first += len(block.where)
        assert sorted(past) == list(range(len(layout.tokens)))
        assert [len(past[token]) - 1 for token in sorted(past)] == layout.positions.tolist()
        assert len({tuple(ids) for ids in past.values()}) == len(past), "nothing is computed twice"
        predictor_of_target = layout.predictor_of_distribution[layout.distribution_of_target]
        for target, number in zip(layout.targets.tolist(), predictor_of_target.tolist(), strict=True):
            start = batch.cu_seqlens[batch.sequence_of_token[target]]
            assert past[int(layout.predictors[number])] == batch.ids[start:target].tolist()
