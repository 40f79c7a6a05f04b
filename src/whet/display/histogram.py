"""How often which values occur: bins, and where their bars are. Pure; `page/templates/drawings.html` draws them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whet.display.chart import Axis, Plot, axis

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
