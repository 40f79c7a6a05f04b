"""Micro-batches cover every trained token once, compute shared prompts once, and stay inside their budget."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.rl.batch import pack
from whet.rl.learner.layout import micro_batches
from whet.rl.samples import TokenSequence


def sequence(prompt, answer):
    trained = [False] * len(prompt) + [True] * len(answer)
    return TokenSequence.demonstration([*prompt, *answer], trained)


def test_a_shared_prompt_is_computed_once():
    """The example in the module's docstring: p q r, then a b | c | d e."""
    p, q, r, a, b, c, d, e = range(8)
    batch = pack([sequence([p, q, r], answer) for answer in ([a, b], [c], [d, e])])
    (layout,) = micro_batches(batch, 1000)
    ids = batch.ids[layout.tokens].tolist()
    assert ids[: layout.prefix_tokens] == [p, q]
    assert sorted(ids[layout.prefix_tokens :]) == sorted([r, a, r, r, d])
    assert layout.prefix_lengths.tolist() == [2, 2, 2]
    assert sorted(batch.ids[layout.targets].tolist()) == [a, b, c, d, e]


def test_a_prompt_used_once_is_part_of_its_row():
    (layout,) = micro_batches(pack([sequence([1, 2, 3], [4, 5])]), 1000)
    assert layout.prefix_tokens == 0
    assert layout.positions.tolist() == [0, 1, 2, 3]


def test_tokens_after_the_last_trained_one_are_not_computed():
    batch = pack([TokenSequence.demonstration([1, 2, 3, 4, 5], [False, True, False, False, False])])
    (layout,) = micro_batches(batch, 1000)
    assert batch.ids[layout.tokens].tolist() == [1]


def test_a_sequence_with_nothing_to_learn_is_not_computed():
    assert micro_batches(pack([TokenSequence.demonstration([1, 2], [False, False])]), 100) == []


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
@given(batches(), st.integers(1, 80))
def test_whatever_the_budget_every_trained_token_is_predicted_once_from_its_own_past(batch, budget):
    layouts = micro_batches(batch, budget)
    targets = np.concatenate([layout.targets for layout in layouts]) if layouts else np.zeros(0, int)
    assert sorted(targets.tolist()) == np.flatnonzero(batch.trained).tolist()
    for layout in layouts:
        slots = layout.prefixes.slots.size + layout.rows.slots.size
        assert slots <= budget or len(layout.rows.slots) == 1
        for row, flat in enumerate(layout.rows.slots):
            of_row = np.isin(np.arange(layout.rows.slots.size), layout.rows.where).reshape(layout.rows.slots.shape)[row]
            own = layout.tokens[layout.prefix_tokens :][flat[of_row]]
            prefix = (
                layout.prefixes.slots[layout.prefix_of_row[row], : layout.prefix_lengths[row]]
                if len(layout.prefixes.slots)
                else np.zeros(0, int)
            )
            read = np.concatenate([batch.ids[layout.tokens[prefix]], batch.ids[own]])
            start = batch.cu_seqlens[batch.sequence_of_token[own[0]]]
            assert read.tolist() == batch.ids[start : own[-1] + 1].tolist()
            assert layout.positions[layout.prefix_tokens :][flat[of_row]].tolist() == (own - start).tolist()
