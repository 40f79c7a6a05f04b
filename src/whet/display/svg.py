"""A chart as inline SVG. Colours and fonts are the page's style sheet's; `chart.js` reads `data-chart` for hovering."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from whet.display.chart import Axis, Chart, Plot, Point, smoothed
from whet.display.html import Html, join, tag

COLOURS = 8
"""Classes c0 to c7 of the style sheet."""


def figure(chart: Chart, width: int, height: int) -> Html:
    """A chart with its legend, where it has several lines."""
    names = [tag("span", series.name, class_=f"c{index % COLOURS}") for index, series in enumerate(chart.series)]
    legend = tag("div", *names, class_="legend") if len(names) > 1 else join()
    return join(legend, tag("div", svg_chart(chart, width, height), class_="figure"))


def svg_chart(chart: Chart, width: int, height: int) -> Html:
    """A line per series: thin as measured, thick smoothed; held-out scores as circles."""
    plot = plot_of(*chart.axes(), width, height)
    parts = grid(plot, chart.x_label)
    for index, series in enumerate(chart.series):
        colour = f"c{index % COLOURS}"
        if len(series.points) >= 20:  # fewer are not smoothed
            parts.append(_path(map(plot.position, series.points), f"raw {colour}"))
        parts.append(_path(map(plot.position, smoothed(series.points)), f"line {colour}"))
        if len(series.points) == 1:
            x, y = plot.position(series.points[0])
            parts.append(tag("circle", cx=coordinate(x), cy=coordinate(y), r=2, class_=f"dot {colour}"))
        for mark in series.marks:
            x, y = plot.position(mark)
            parts.append(tag("circle", cx=coordinate(x), cy=coordinate(y), r=4.5, class_=f"mark {colour}"))
    area = {name: getattr(plot, name) for name in ("left", "top", "width", "height")}
    area |= {"low": plot.x_axis.low, "high": plot.x_axis.high}
    data = {"plot": area, "series": [_hover(series.name, series.points) for series in chart.series]}
    return drawing(chart.title, parts, width, height, data_chart=json.dumps(data, separators=(",", ":")))


def drawing(title: str, parts: Iterable[Html], width: int, height: int, **attributes: str) -> Html:
    """A chart of these parts."""
    box = f"0 0 {width} {height}"
    return tag("svg", *parts, viewBox=box, class_="chart", role="img", aria_label=title, **attributes)


def plot_of(x_axis: Axis, y_axis: Axis, width: int, height: int) -> Plot:
    """The area of a chart of this size that is left by the labels of its axes."""
    return Plot(x_axis, y_axis, 46, 10, width - 56, height - 40)


def grid(plot: Plot, x_label: str) -> list[Html]:
    """The axes of a plot with their labels, and lines across it."""
    parts, bottom = y_lines(plot), plot.top + plot.height
    for tick in plot.x_axis.ticks:
        x, _ = plot.position((tick, 0.0))
        parts.append(tag("text", f"{tick:g}", x=coordinate(x), y=bottom + 15, class_="axis middle"))
    end = tag("text", x_label, x=plot.left + plot.width, y=bottom + 28, class_="axis end")
    return [*parts, end]


def y_lines(plot: Plot) -> list[Html]:
    """Lines across a plot at the ticks of its y axis, with their labels."""
    parts = []
    for tick in plot.y_axis.ticks:
        y = coordinate(plot.position((0.0, tick))[1])
        parts.append(tag("line", x1=plot.left, x2=plot.left + plot.width, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", plot.y_axis.label(tick), x=plot.left - 6, y=y, dy="0.32em", class_="axis end"))
    return parts


def _path(points: Iterable[Point], class_: str) -> Html:
    drawn = [f"{coordinate(x)},{coordinate(y)}" for x, y in points]
    return tag("path", d="M" + "L".join(drawn), class_=class_) if len(drawn) > 1 else join()


def _hover(name: str, points: Sequence[Point]) -> dict[str, object]:
    return {"name": name, "x": [round(x, 1) for x, _ in points], "y": [float(f"{y:.4g}") for _, y in points]}


def coordinate(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")
