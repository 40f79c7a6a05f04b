"""The data of a line chart and of a histogram: series, ranges, ticks, smoothing, bins. Pure;
`page/templates/drawings.html` and `rl/report/page.py` draw it.

A long series is thinned to what a screen can show, each point the mean of its share, so that the report of a long run
stays small.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_POINTS = 300
Point = tuple[float, float]

SAME = 1e-9
"""Values that differ by less, of their size, are one value: what rounding leaves is no curve."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: (step, value) in order of steps, finite values only."""

    name: str
    points: list[Point]
    marks: list[Point] = field(default_factory=list)  # single observations of the same thing: held-out scores

    @classmethod
    def of(
        cls, name: str, steps: Sequence[float], values: Sequence[float | None], marks: Sequence[Point] = ()
    ) -> Series:
        """Without the values that are missing or not finite, thinned."""
        known = [
            (step, value)
            for step, value in zip(steps, values, strict=True)
            if value is not None and math.isfinite(value)
        ]
        return cls(name, _thinned(known), [mark for mark in marks if math.isfinite(mark[1])])

    @property
    def smoothed(self) -> list[Point]:
        return smoothed(self.points)


def _thinned(points: list[Point]) -> list[Point]:
    count = len(points)
    if count <= MOST_POINTS:
        return points
    edges = [index * count // MOST_POINTS for index in range(MOST_POINTS + 1)]
    return [_middle(points[edges[index] : edges[index + 1]]) for index in range(MOST_POINTS)]


def _middle(points: list[Point]) -> Point:
    return math.fsum(x for x, _ in points) / len(points), math.fsum(y for _, y in points) / len(points)


def smoothed(points: Sequence[Point]) -> list[Point]:
    """Each value averaged with its neighbours, over about a tenth of the series; the points themselves when few."""
    reach = len(points) // 20
    if reach == 0:
        return list(points)
    result = []
    for index, (x, _) in enumerate(points):
        near = min(reach, index, len(points) - 1 - index)  # a window that shrinks evenly at the ends adds no bias there
        window = points[index - near : index + near + 1]
        result.append((x, math.fsum(y for _, y in window) / len(window)))
    return result


@dataclass(frozen=True, slots=True)
class Axis:
    low: float
    high: float
    ticks: list[float]

    def share(self, value: float) -> float:
        """Where on the axis: 0 at `low`, 1 at `high`."""
        return (value - self.low) / (self.high - self.low)

    def label(self, tick: float) -> str:
        """A tick as short as its neighbours allow."""
        if tick == 0:
            return "0"
        largest = max(abs(self.low), abs(self.high))
        step = abs(self.ticks[1] - self.ticks[0]) if len(self.ticks) > 1 else abs(tick)
        decade = math.floor(math.log10(step) + 1e-9)
        if largest >= 1e4 or largest < 1e-3:
            digits = max(1, math.floor(math.log10(abs(tick)) + 1e-9) - decade)
            mantissa, _, exponent = f"{tick:.{digits}e}".partition("e")
            return f"{mantissa.rstrip('0').removesuffix('.')}e{int(exponent)}"
        return f"{tick:.{max(0, -decade)}f}"


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    series: list[Series]
    x_label: str = "step"
    unit_range: bool = False  # values are shares: always show 0 to 1

    @property
    def empty(self) -> bool:
        return not any(series.points or series.marks for series in self.series)

    def axes(self) -> tuple[Axis, Axis]:
        """The x and the y axis, wide enough for everything."""
        points = [point for series in self.series for point in (*series.points, *series.marks)]
        xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
        low, high = min(ys), max(ys)
        if self.unit_range:
            low, high = min(low, 0.0), max(high, 1.0)
        return axis(min(xs), max(xs), 8, whole=True), axis(low, high, 5)

    def plot(self, width: int, height: int) -> Plot:
        """Where its values are in a picture of this size, with room for the labels of both axes."""
        return Plot(*self.axes(), 46, 10, width - 56, height - 40)


@dataclass(frozen=True, slots=True)
class Plot:
    """Where values are drawn: axes, and the area of a picture that they span."""

    x_axis: Axis
    y_axis: Axis
    left: float
    top: float
    width: float
    height: float

    def position(self, point: Point) -> Point:
        """From the picture's top left corner."""
        x, y = point
        return self.left + self.x_axis.share(x) * self.width, self.top + (1 - self.y_axis.share(y)) * self.height


def axis(low: float, high: float, ticks: int, *, whole: bool = False) -> Axis:
    """An axis from `low` to `high` with about so many ticks.

    `whole`: only whole numbers are marked, and the range is left as it is; otherwise it is rounded outwards.
    """
    size = max(abs(low), abs(high))
    if high - low <= (0 if whole else SAME * size):
        margin = size * 0.1 or 1.0
        low, high = low - margin, high + margin
        if whole:
            return Axis(low, high, [(low + high) / 2])
    step = nice_step((high - low) / ticks)
    if whole:
        step = max(1.0, step)
        first = math.ceil(low / step - 1e-9)
    else:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        first = round(low / step)
    count = math.floor(high / step + 1e-9) - first + 1
    return Axis(low, high, [(first + index) * step for index in range(count)])


def nice_step(about: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below `about`."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= about * (1 - 1e-9))


MOST_BINS = 20
FEW_VALUES = 12
"""With no more different values than this, each has a bar of its own."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Values from `low` to `high` (to the next bin's low), or exactly `low` where both are the same."""

    low: float
    high: float
    count: int

    @property
    def label(self) -> str:
        return f"{self.low:.4g}" if self.low == self.high else f"{self.low:.4g} to {self.high:.4g}"


def histogram(values: Sequence[float]) -> list[Bin]:
    """A bin for each value where they are few, else bins of one round width, from the lowest to the highest value."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    counts: Counter[float] = Counter()
    for value in finite:
        counts[value] += 1
        if len(counts) > FEW_VALUES:
            break
    else:
        return [Bin(value, value, count) for value, count in sorted(counts.items())]
    whole = axis(min(finite), max(finite), MOST_BINS)
    step = whole.ticks[1] - whole.ticks[0]
    bins = [0] * max(1, round((whole.high - whole.low) / step))
    for value in finite:
        bins[min(len(bins) - 1, int((value - whole.low) / step + 1e-9))] += 1
    return [Bin(whole.low + index * step, whole.low + (index + 1) * step, count) for index, count in enumerate(bins)]


@dataclass(frozen=True, slots=True)
class HistogramBars:
    """Bars of equal width."""

    bins: Sequence[Bin]

    def plot(self, width: int, height: int) -> Plot:
        """Where they are in a picture of this size: x is the number of a bar."""
        y_axis = axis(0.0, float(max(one.count for one in self.bins)), 4)
        return Plot(Axis(0.0, float(max(len(self.bins), 4)), []), y_axis, 46, 10, width - 56, height - 34)

    @property
    def single(self) -> bool:
        """Whether each bar is that of one value."""
        return all(one.low == one.high for one in self.bins)

    @property
    def labels(self) -> list[tuple[float, str]]:
        """(position in bars, text): under each bar its value, or under every few edges of bins the edge."""
        if self.single:
            return [(index + 0.5, f"{one.low:.3g}") for index, one in enumerate(self.bins)]
        edges = [self.bins[0].low, *(one.high for one in self.bins)]
        every = -(-len(self.bins) // 10)
        return [(float(index), f"{edge:.4g}") for index, edge in enumerate(edges) if index % every == 0]
