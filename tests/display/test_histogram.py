"""How often which values occur."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from whet.display.chart import FEW_VALUES, MOST_BINS, Bin, HistogramBars, histogram
from whet.display.page.rendering import templates


def test_few_different_values_have_a_bar_each() -> None:
    assert histogram([1.0, 0.0, 1.0, 0.5]) == [Bin(0.0, 0.0, 1), Bin(0.5, 0.5, 1), Bin(1.0, 1.0, 2)]


@given(st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=FEW_VALUES + 1, max_size=200))
def test_every_value_is_in_one_bin_that_holds_it(values: list[float]) -> None:
    bins = histogram(values)
    assert sum(one.count for one in bins) == len(values)
    slack = 1e-6 * max(1.0, *map(abs, values))
    assert bins[0].low <= min(values) + slack
    assert bins[-1].high >= max(values) - slack
    assert len(bins) <= 2 * MOST_BINS + 2
    drawn = templates().get_template("drawings.html").module.bars(HistogramBars(bins), "t", 400, 200)  # type: ignore[attr-defined]
    assert str(drawn).count("<rect") == len(bins)


def test_what_is_not_finite_is_left_out_and_nothing_gives_no_bins() -> None:
    assert histogram([math.nan, math.inf]) == []
    assert histogram([math.nan, 2.0]) == [Bin(2.0, 2.0, 1)]
