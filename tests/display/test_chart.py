"""What a chart shows, before it is drawn."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.display.chart import MOST_POINTS, Chart, Series, axis, nice_step, smoothed
from whet.display.page.rendering import templates


def svg_chart(chart: Chart, width: int, height: int) -> str:
    return str(templates().get_template("drawings.html").module.lines(chart, width, height))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("about", "step"), [(0.0013, 0.002), (0.2, 0.2), (0.21, 0.5), (7.0, 10.0), (1.0, 1.0)])
def test_steps_between_ticks_are_round(about: float, step: float) -> None:
    assert nice_step(about) == pytest.approx(step)


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=50))
def test_the_axes_hold_every_value_and_every_tick(values: list[float]) -> None:
    chart = Chart("c", [Series.of("s", list(range(len(values))), values)])
    x_axis, y_axis = chart.axes()
    slack = 1e-6 * max(1.0, *map(abs, values))
    assert y_axis.low - slack <= min(values)
    assert max(values) <= y_axis.high + slack
    for one in (x_axis, y_axis):
        assert one.ticks
        assert all(-1e-6 <= one.share(tick) <= 1 + 1e-6 for tick in one.ticks)
        assert len(one.ticks) <= 12
    assert svg_chart(chart, 400, 200)


def test_shares_are_drawn_from_zero_to_one() -> None:
    _, y_axis = Chart("c", [Series.of("s", [1, 2], [0.4, 0.5])], unit_range=True).axes()
    assert (y_axis.low, y_axis.high) == (0.0, 1.0)
    assert [y_axis.label(tick) for tick in y_axis.ticks] == ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]


def test_small_numbers_are_labelled_with_their_power_of_ten() -> None:
    _, y_axis = Chart("c", [Series.of("s", [1, 2], [0.0, 2e-4])]).axes()
    assert [y_axis.label(tick) for tick in y_axis.ticks][:3] == ["0", "5e-5", "1e-4"]


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (1e-5, ["9e-6", "9.5e-6", "1e-5", "1.05e-5", "1.1e-5"]),
        (2e-11, ["1.8e-11", "1.9e-11", "2e-11", "2.1e-11", "2.2e-11"]),
    ],
)
def test_labels_of_an_axis_far_from_one_tell_its_ticks_apart(value: float, labels: list[str]) -> None:
    _, y_axis = Chart("c", [Series.of("s", [1], [value])]).axes()
    assert [y_axis.label(tick) for tick in y_axis.ticks] == labels


def test_values_that_are_missing_or_not_finite_are_left_out() -> None:
    series = Series.of("s", [1, 2, 3], [0.1, None, math.nan], marks=[(0, math.nan), (3, 0.5)])
    assert series.points == [(1, 0.1)]
    assert series.marks == [(3, 0.5)]


def test_a_long_series_is_thinned_and_keeps_its_mean() -> None:
    values = [float(step % 7) for step in range(9 * MOST_POINTS)]
    series = Series.of("s", list(range(len(values))), values)
    assert len(series.points) == MOST_POINTS
    assert sum(y for _, y in series.points) / MOST_POINTS == pytest.approx(sum(values) / len(values))


def test_smoothing_keeps_a_straight_line_straight() -> None:
    line = [(float(x), 2.0 * x) for x in range(100)]
    assert [y for _, y in smoothed(line)] == pytest.approx([y for _, y in line])


def test_a_single_point_is_drawn_as_a_dot() -> None:
    assert 'class="dot c0"' in svg_chart(Chart("c", [Series.of("s", [1], [0.5])]), 400, 200)


@pytest.mark.parametrize("value", [0.1, 1e-3 / 3, 1234.5, -7.0, 1e300])
def test_what_rounding_leaves_of_a_constant_has_an_axis_around_it(value: float) -> None:
    around = axis(value * (1 - 1e-16), value * (1 + 3e-16), 5) if value > 0 else axis(value, value, 5)
    assert around.low < value < around.high
    assert len(around.ticks) > 2
    assert 0.4 < around.share(value) < 0.6
