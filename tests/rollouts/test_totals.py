"""Averages over rows: the same whatever the order in which they were added."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from whet.rollouts.totals import ExactSum

numbers = st.floats(min_value=-1e12, max_value=1e12)


@given(st.lists(numbers, max_size=40))
def test_a_sum_is_exact_and_so_the_same_in_any_order(values: list[float]) -> None:
    total = ExactSum()
    for value in values:
        total.add(value)
    assert total.value == float(sum(map(Fraction, values), Fraction(0)))


def test_a_value_that_is_no_number_is_not_lost() -> None:
    total = ExactSum()
    for value in (1.0, math.inf, 2.0):
        total.add(value)
    assert total.value == math.inf
    total.add(math.nan)
    assert math.isnan(total.value)
