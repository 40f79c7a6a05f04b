"""Which rows a search has: disjoint parts, by the seed alone, and never two that ask the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import GepaError
from whet.gepa.splits import FEWEST_HELD_OUT, EnvRows, shared, split_examples

SIZES: dict[str, Any] = {"num_train": 6, "num_val": 4, "held_out": 8, "exact": False, "seed": 0}


def rows(first: int, number: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"question {place}"}],
            "answer": str(place),
            "example_id": place - first,
        }
        for place in range(first, first + number)
    ]


def questions(examples: Any) -> list[str]:
    return [example.row["answer"] for example in examples]


def test_train_and_val_are_from_the_training_rows_and_held_out_from_the_others() -> None:
    found = split_examples([EnvRows("env", rows(0, 20), rows(100, 20))], **SIZES)
    assert [len(part) for part in (found.train, found.val, found.held_out)] == [6, 4, 8]
    assert not set(questions(found.train)) & set(questions(found.val))
    assert all(int(answer) < 100 for answer in questions([*found.train, *found.val]))
    assert all(int(answer) >= 100 for answer in questions(found.held_out))
    assert found.val[2].key == "val/env/2"


def test_held_out_is_a_third_part_where_there_are_no_rows_for_evaluation() -> None:
    found = split_examples([EnvRows("env", rows(0, 20), None)], **SIZES)
    everything = questions([*found.train, *found.val, *found.held_out])
    assert len(everything) == len(set(everything)) == 18


def test_rows_that_ask_the_same_are_one_whatever_their_number() -> None:
    twice = [*rows(0, 18), *({**row, "example_id": 50 + row["example_id"]} for row in rows(0, 18))]
    found = split_examples([EnvRows("env", twice, rows(0, 30))], **SIZES)
    everything = questions([*found.train, *found.val, *found.held_out])
    assert len(everything) == len(set(everything)) == 18


def test_rows_with_one_question_and_other_worlds_behind_it_are_different() -> None:
    games = [{"prompt": [{"role": "user", "content": "Guess."}], "answer": "", "info": {"seed": n}} for n in range(30)]
    assert len(split_examples([EnvRows("env", games, None)], **SIZES).held_out) == 8


def test_the_seed_alone_decides_and_more_to_hold_out_begins_with_what_less_had() -> None:
    source = [EnvRows("env", rows(0, 30), rows(100, 30))]
    first, again = split_examples(source, **SIZES), split_examples(source, **SIZES)
    assert questions(first.train) == questions(again.train)
    more = split_examples(source, **{**SIZES, "held_out": 20})
    assert questions(more.held_out)[:8] == questions(first.held_out)
    assert questions(more.val) == questions(first.val)
    assert questions(split_examples(source, **{**SIZES, "seed": 1}).train) != questions(first.train)


def test_too_few_rows_are_a_line_with_numbers_that_would_do() -> None:
    with pytest.raises(GepaError, match=r"has 5 different tasks .* Give -n 3 -N 2, or fewer\."):
        split_examples([EnvRows("env", rows(0, 5), None)], **SIZES)


def test_fewer_held_out_examples_unless_exact() -> None:
    source = [EnvRows("env", rows(0, 10), rows(100, 20))]
    found = split_examples(source, **{**SIZES, "held_out": 50})
    assert len(found.held_out) == 20
    assert found.notes == ["env: the final comparison is on the 20 tasks that can be held out"]
    with pytest.raises(GepaError, match="20 tasks left to hold out for the final comparison, and 50 are wanted"):
        split_examples(source, **{**SIZES, "held_out": 50, "exact": True})
    with pytest.raises(GepaError, match=f"has {FEWEST_HELD_OUT - 1} tasks left to hold out"):
        split_examples([EnvRows("env", rows(0, 10), rows(100, FEWEST_HELD_OUT - 1))], **{**SIZES, "held_out": 50})


def test_environments_share_the_examples_by_weight() -> None:
    sources = [EnvRows("one", rows(0, 30), None, weight=2.0), EnvRows("two", rows(0, 30), None)]
    found = split_examples(sources, **SIZES)
    assert [example.environment for example in found.train] == ["one"] * 4 + ["two"] * 2
    assert len({example.key for example in found.train}) == 6


@given(st.integers(0, 500), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_shares_add_up_and_are_at_least_one_while_there_are_enough(total: int, weights: list[float]) -> None:
    parts = shared(total, weights)
    assert sum(parts) == total
    assert min(parts) >= (1 if total >= len(weights) else 0)
