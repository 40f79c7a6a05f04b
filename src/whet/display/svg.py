"""A chart as inline SVG. Colours and fonts are the page's style sheet's; `chart.js` reads `data-chart` for hovering."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from whet.display.chart import Axis, Chart, Point, smoothed
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
    left, right, top, bottom = 46, 10, 10, 30
    plot_width, plot_height = width - left - right, height - top - bottom
    x_axis, y_axis = chart.axes()

    def place(point: Point) -> tuple[float, float]:
        return left + x_axis.share(point[0]) * plot_width, top + (1 - y_axis.share(point[1])) * plot_height

    parts = [
        *_grid(x_axis, y_axis, left, top, plot_width, plot_height),
        tag("text", chart.x_label, x=left + plot_width, y=height - 2, class_="axis end"),
    ]
    for index, series in enumerate(chart.series):
        colour = f"c{index % COLOURS}"
        if len(series.points) >= 20:  # fewer are not smoothed
            parts.append(_path(map(place, series.points), f"raw {colour}"))
        parts.append(_path(map(place, smoothed(series.points)), f"line {colour}"))
        if len(series.points) == 1:
            x, y = place(series.points[0])
            parts.append(tag("circle", cx=place_text(x), cy=place_text(y), r=2, class_=f"dot {colour}"))
        for mark in series.marks:
            x, y = place(mark)
            parts.append(tag("circle", cx=place_text(x), cy=place_text(y), r=4.5, class_=f"mark {colour}"))
    plot = {
        "left": left,
        "top": top,
        "width": plot_width,
        "height": plot_height,
        "low": x_axis.low,
        "high": x_axis.high,
    }
    data = {"plot": plot, "series": [_hover(series.name, series.points) for series in chart.series]}
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {width} {height}",
        class_="chart",
        role="img",
        aria_label=chart.title,
        data_chart=json.dumps(data, separators=(",", ":")),
    )


def _grid(x_axis: Axis, y_axis: Axis, left: int, top: int, width: int, height: int) -> list[Html]:
    parts = y_lines(y_axis, left, top, width, height)
    for tick in x_axis.ticks:
        x = place_text(left + x_axis.share(tick) * width)
        parts.append(tag("text", f"{tick:g}", x=x, y=top + height + 15, class_="axis middle"))
    return parts


def y_lines(y_axis: Axis, left: int, top: int, width: int, height: int) -> list[Html]:
    """Lines across a plot at the ticks of its y axis, with their labels."""
    parts = []
    for tick in y_axis.ticks:
        y = place_text(top + (1 - y_axis.share(tick)) * height)
        parts.append(tag("line", x1=left, x2=left + width, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", y_axis.label(tick), x=left - 6, y=y, dy="0.32em", class_="axis end"))
    return parts


def _path(points: Iterable[Point], class_: str) -> Html:
    places = [f"{place_text(x)},{place_text(y)}" for x, y in points]
    return tag("path", d="M" + "L".join(places), class_=class_) if len(places) > 1 else join()


def _hover(name: str, points: Sequence[Point]) -> dict[str, object]:
    return {"name": name, "x": [round(x, 1) for x, _ in points], "y": [float(f"{y:.4g}") for _, y in points]}


def place_text(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")
