"""How often which values occur: bins, and a bar chart of them as inline SVG. Colours are the page's style sheet's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whet.display.chart import axis
from whet.display.html import Html, tag
from whet.display.svg import place_text, y_lines

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
    return [Bin(whole.low + place * step, whole.low + (place + 1) * step, count) for place, count in enumerate(bins)]


def svg_histogram(title: str, bins: Sequence[Bin], width: int, height: int, unit: str = "") -> Html:
    """Bars of equal width; a tooltip shows its values and its count. `unit` follows the values."""
    left, right, top, bottom = 46, 10, 10, 24
    plot_width, plot_height = width - left - right, height - top - bottom
    y_axis = axis(0.0, float(max(one.count for one in bins)), 4)
    parts = y_lines(y_axis, left, top, plot_width, plot_height)
    pitch = plot_width / max(len(bins), 4)
    gap = 0.2 * pitch if _single(bins) else 1.0
    for place, one in enumerate(bins):
        tall = y_axis.share(float(one.count)) * plot_height
        parts.append(
            tag(
                "rect",
                tag("title", f"{one.label}{unit}: {one.count:,}"),
                x=place_text(left + place * pitch + gap / 2),
                y=place_text(top + plot_height - tall),
                width=place_text(pitch - gap),
                height=place_text(tall),
                class_="bar",
            )
        )
    for share, label in _labels(bins):
        x = place_text(left + share * pitch)
        parts.append(tag("text", label, x=x, y=top + plot_height + 15, class_="axis middle"))
    return tag("svg", *parts, viewBox=f"0 0 {width} {height}", class_="chart", role="img", aria_label=title)


def _single(bins: Sequence[Bin]) -> bool:
    return all(one.low == one.high for one in bins)


def _labels(bins: Sequence[Bin]) -> list[tuple[float, str]]:
    """(place in bars, text): under each bar its value, or under every few edges of bins the edge."""
    if _single(bins):
        return [(place + 0.5, f"{one.low:.3g}") for place, one in enumerate(bins)]
    edges = [bins[0].low, *(one.high for one in bins)]
    every = -(-len(bins) // 10)
    return [(float(place), f"{edge:.4g}") for place, edge in enumerate(edges) if place % every == 0]
