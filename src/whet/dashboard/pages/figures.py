"""Which curves a page draws, and their drawing as SVG for a page without scripts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from whet.display.chart import Chart, Point, Series
from whet.display.html import Html
from whet.display.svg import svg_chart

WIDE, SMALL = (1000, 300), (400, 170)
COUNTS = ("/mean", "/num_turns", "_calls")
"""Endings of metrics that are no reward functions; the list of all metrics has them."""

TITLES = {
    "reward/mean": "Reward",
    "optim/loss": "Loss",
    "validation/loss": "Validation loss",
    "rollouts/truncated_frac": "Truncated rollouts",
    "staleness/mean": "Staleness, steps",
    "time/step": "Seconds a step",
}
"""Of metrics that share a chart in reports."""

Columns = Mapping[str, Sequence[float | None]]
"""A value for each step, by the name of the metric."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart: its metrics, each with a label of its own."""

    title: str
    names: list[str]
    labels: list[str]
    share: bool = False  # values are between 0 and 1: always show all of that
    wide: bool = False
    note: str = ""
    svg: Html = field(default=Html(""), compare=False)


def figures_of(
    known: Iterable[str], series: Columns, environments: Sequence[str], chosen: Sequence[str]
) -> list[Figure]:
    """The figures of a run: rewards, what was chosen, each environment's reward functions, then the key metrics."""
    from whet.rl.report.data import KEY_METRICS

    names = list(known)
    found = [_rewards(names, environments, series)]
    found += [Figure(name, [name], [name]) for name in chosen if name in names]
    for environment in environments:
        found += _functions(environment, names, series)
    for title, metrics, share in KEY_METRICS:
        here = [name for name in metrics if name in names and name not in chosen]
        found.append(Figure(title, here, [_short(name) for name in here], share))
    return [figure for figure in found if figure.names]


def _rewards(names: Sequence[str], environments: Sequence[str], series: Columns) -> Figure:
    curves = [f"reward/{name}/mean" for name in environments if f"reward/{name}/mean" in names]
    if not curves:
        losses = [name for name in ("optim/loss", "validation/loss") if name in names]
        return Figure("Loss", losses, ["training", "validation"][: len(losses)], wide=True)
    labels = [name.removeprefix("reward/").removesuffix("/mean") for name in curves]
    return Figure("Reward", curves, labels, is_share(series, curves), wide=True)


def _functions(environment: str, names: Sequence[str], series: Columns) -> list[Figure]:
    """Reward functions and metrics of an environment: those between 0 and 1 together, and the others."""
    before = f"reward/{environment}/"
    here = [name for name in names if name.startswith(before) and not name.endswith(COUNTS)]
    shares = [name for name in here if is_share(series, [name])]
    others = [name for name in here if name not in shares]
    return [
        Figure(f"{environment}{what}", found, [name.removeprefix(before) for name in found], share=found is shares)
        for what, found in ((": reward functions", shares), (": other metrics", others))
    ]


def is_share(series: Columns, names: Iterable[str]) -> bool:
    """Whether all values are between 0 and 1."""
    values = [value for name in names for value in series.get(name, ()) if value is not None]
    return bool(values) and all(0 <= value <= 1 for value in values)


def _short(name: str) -> str:
    return name.rpartition("/")[2].removesuffix("_frac").replace("_", " ")


def title_of(name: str) -> str:
    """What a metric is called where it has a chart of its own."""
    from whet.rl.report.data import KEY_METRICS

    if name in TITLES:
        return TITLES[name]
    if name.startswith("reward/"):
        return name.removeprefix("reward/").removesuffix("/mean")
    return next((title for title, names, _ in KEY_METRICS if names == (name,)), name)


def drawn(figure: Figure, steps: Sequence[int], series: Columns, marks: Mapping[str, Sequence[Point]]) -> Figure:
    """The same with its drawing. `marks` are held-out scores by metric."""
    lines = [
        Series.of(label, steps, series.get(name) or [None] * len(steps), marks.get(name, ()))
        for name, label in zip(figure.names, figure.labels, strict=True)
    ]
    svg = svg_chart(Chart(figure.title, lines, unit_range=figure.share), *(WIDE if figure.wide else SMALL))
    return replace(figure, svg=svg)


def extremes(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """The newest value, the lowest and the highest."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (finite[-1], min(finite), max(finite)) if finite else (None, None, None)
