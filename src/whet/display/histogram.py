"""How often which values occur: bins, and a bar chart of them as inline SVG. Colours are the page's style sheet's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whet.display.chart import Axis, Plot, axis
from whet.display.html import Html, tag
from whet.display.svg import coordinate, drawing, y_lines

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


def svg_histogram(title: str, bins: Sequence[Bin], width: int, height: int, unit: str = "") -> Html:
    """Bars of equal width; a tooltip shows its values and its count. `unit` follows the values."""
    y_axis = axis(0.0, float(max(one.count for one in bins)), 4)
    plot = Plot(Axis(0.0, float(max(len(bins), 4)), []), y_axis, 46, 10, width - 56, height - 34)
    parts = y_lines(plot)
    bottom = plot.top + plot.height
    pitch = plot.width / plot.x_axis.high
    gap = 0.2 * pitch if _single(bins) else 1.0
    for index, one in enumerate(bins):
        x, y = plot.position((index, one.count))
        parts.append(
            tag(
                "rect",
                tag("title", f"{one.label}{unit}: {one.count:,}"),
                x=coordinate(x + gap / 2),
                y=coordinate(y),
                width=coordinate(pitch - gap),
                height=coordinate(bottom - y),
                class_="bar",
            )
        )
    for bar, label in _labels(bins):
        x, _ = plot.position((bar, 0.0))
        parts.append(tag("text", label, x=coordinate(x), y=bottom + 15, class_="axis middle"))
    return drawing(title, parts, width, height)


def _single(bins: Sequence[Bin]) -> bool:
    return all(one.low == one.high for one in bins)


def _labels(bins: Sequence[Bin]) -> list[tuple[float, str]]:
    """(position in bars, text): under each bar its value, or under every few edges of bins the edge."""
    if _single(bins):
        return [(index + 0.5, f"{one.low:.3g}") for index, one in enumerate(bins)]
    edges = [bins[0].low, *(one.high for one in bins)]
    every = -(-len(bins) // 10)
    return [(float(index), f"{edge:.4g}") for index, edge in enumerate(edges) if index % every == 0]
