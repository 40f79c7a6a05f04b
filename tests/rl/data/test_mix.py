"""Turns in exact shares."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from whet.rl.data.curriculum import Mix


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any), st.integers(1, 300))
def test_after_any_number_of_turns_everyone_is_within_one_of_their_share(weights: list[int], turns: int) -> None:
    mix = Mix(weights)
    for turn in range(1, turns + 1):
        mix.next()
        for had, weight in zip(mix.turns, weights, strict=True):
            assert abs(had - Fraction(turn * weight, sum(weights))) < 1


def test_who_has_no_share_never_has_a_turn() -> None:
    mix = Mix([1, 0, 3])
    assert {mix.next() for _ in range(40)} == {0, 2}
