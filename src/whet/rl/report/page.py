"""What the report of a training run shows, from the run's data: values of `training.html`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whet.records.conversation import EXCERPT, conversation
from whet.records.directory import RUN_CONFIG
from whet.rl.doctor.finding import DoctorFinding
from whet.rl.monitors.progress import compare
from whet.rl.report.data import RunData
from whet.rl.report.figures import Figure
from whet.rl.report.samples import before_and_after, trained_samples

TEMPLATE = "training.html"


def values(run: RunData, figures: Sequence[Figure], findings: Sequence[DoctorFinding] = ()) -> dict[str, Any]:
    """What the template needs."""
    before, after = run.evaluation("before"), run.evaluation("after")
    ways, rows = compare(before, after)
    rollouts = run.directory / "rollouts"
    seconds = run.total("time/step")
    tokens = sum((row.get("perf/tokens_per_s") or 0) * (row.get("time/step") or 0) for row in run.metrics)
    return {
        "run": run,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "findings": [one.view for one in findings],
        "figures": figures,
        "curves": _curves(figures),
        "ways": ways,
        "comparison": rows,
        "rewards": [row for row in rows if row.quantity == "reward" and not row.member],
        "errors": sum(score.errors for report in (before, after) if report for score in report.scores),
        "pairs": before_and_after(rollouts),
        "trained": trained_samples(rollouts, [int(row["step"]) for row in run.metrics]),
        "messages_of": lambda row, part: conversation(row, part, EXCERPT),
        "config_text": (run.directory / RUN_CONFIG).read_text(encoding="utf-8"),
    }


def _curves(figures: Sequence[Figure]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The data of the figures, for the script of the page: points and held-out scores by metric."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {"series": {}, "marks": {}}
    for figure in figures:
        for name, line in zip(figure.names, figure.chart.series if figure.chart else (), strict=True):
            for kind, points in (("series", line.points), ("marks", line.marks)):
                if points:
                    curves[kind][name] = [(round(x, 1), float(f"{y:.5g}")) for x, y in points]
    return curves
