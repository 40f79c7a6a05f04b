"""What the report of a training run shows, from the run's data: values of `training.html`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from whet.display.text import number
from whet.rl.doctor.finding import DoctorFinding
from whet.rl.monitors.progress import Difference, ScoreComparison, compare
from whet.rl.report.data import RunData
from whet.rl.report.figures import Figure
from whet.rl.report.samples import Row, before_and_after, trained_samples
from whet.system.terminal import duration
from whet.viewer.conversation import EXCERPT, conversation

TEMPLATE = "training.html"


def values(run: RunData, figures: Sequence[Figure], findings: Sequence[DoctorFinding] = ()) -> dict[str, Any]:
    """What the template needs."""
    before, after = run.evaluation("before"), run.evaluation("after")
    ways, rows = compare(before, after)
    rollouts = run.directory / "rollouts"
    return {
        "title": run.name,
        "facts": [_made(run), f"learning rate {run.config.get('learning_rate')}", f"seed {run.config.get('seed')}"],
        "stats": list(_stats(run, ways, rows)),
        "findings": [one.view for one in findings],
        "figures": figures,
        "curves": _curves(figures),
        "ways": ways,
        "comparison": [_compared(row, ways) for row in rows],
        "paired": any(one.reach is not None for row in rows for one in row.values.values()),
        "errors": sum(score.errors for report in (before, after) if report for score in report.scores),
        "pairs": [
            _two(
                f"{pair.environment}, task {pair.before.get('example_id')}, {pair.sampling}: {pair.why}",
                ("before", pair.before),
                ("after", pair.after),
            )
            for pair in before_and_after(rollouts)
        ],
        "trained": [
            _two(f"step {group.step}, {group.environment}", ("best", group.best), ("worst", group.worst))
            for group in trained_samples(rollouts, [int(row["step"]) for row in run.metrics])
        ],
        "config": (run.directory / "config.toml").read_text(encoding="utf-8"),
    }


def _made(run: RunData) -> str:
    """The model, and what it is trained on."""
    config = run.config
    model, batch_size = config.get("model"), config.get("batch_size", 0)
    if not run.environments:
        data = config.get("data", {})
        return f"{model} imitates {data.get('path') or data.get('dataset')}; {batch_size} rows a step"
    rollouts = config.get("rollouts_per_example", 1)
    groups = batch_size // max(1, rollouts)
    return f"{model} on {', '.join(run.environments)}; {groups} tasks x {rollouts} rollouts a step"


def _stats(run: RunData, ways: Sequence[str], rows: Sequence[ScoreComparison]) -> Iterator[tuple[str, str, str]]:
    """(what it is, the number, a note): mean held-out reward for each way of sampling, then what training took."""
    rewards = [row for row in rows if row.quantity == "reward" and not row.member]
    for way in ways if rewards else ():
        one = rewards[-1].values[way]
        yield f"held-out reward, {way}", f"{number(one.before, 2)} → {number(one.after, 2)}", ""
    yield "steps", str(run.steps), ""
    if seconds := run.total("time/step"):
        yield "training took", duration(seconds), ""
        tokens = sum((row.get("perf/tokens_per_s") or 0) * (row.get("time/step") or 0) for row in run.metrics)
        yield "trained tokens", f"{tokens / seconds:,.0f}", "a second"


def _curves(figures: Sequence[Figure]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The data of the figures, for the script of the page: points and held-out scores by metric."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {"series": {}, "marks": {}}
    for figure in figures:
        for name, line in zip(figure.names, figure.chart.series if figure.chart else (), strict=True):
            for kind, points in (("series", line.points), ("marks", line.marks)):
                if points:
                    curves[kind][name] = [(round(x, 1), float(f"{y:.5g}")) for x, y in points]
    return curves


def _compared(row: ScoreComparison, ways: Sequence[str]) -> dict[str, Any]:
    """A row of the table of scores before and after."""
    part = row.member or row.quantity != "reward"
    return {
        "name": row.environment if row.quantity == "reward" else row.quantity.replace("_", " "),
        "kind": "part" if part else "total" if row.environment == "mean" else "",
        "cells": [(one.before, one.after, *_change(one)) for one in (row.values[way] for way in ways)],
    }


def _change(one: Difference) -> tuple[str, str]:
    """What changed, and whether that is up or down."""
    change = one.change
    if change is None or not math.isfinite(change):
        return "-", ""
    text = f"{change:+.3f}" + ("" if one.reach is None else f" ± {one.reach:.3f}")
    return text, ("up" if change > 0 else "down") if one.is_real and change else ""


def _two(title: str, *sides: tuple[str, Row]) -> dict[str, Any]:
    """Two rollouts of one task, next to each other."""
    row = sides[0][1]
    return {
        "title": title,
        "task": conversation(row, "prompt", EXCERPT),
        "answer": row.get("answer"),
        "sides": [(name, _facts(row), conversation(row, "completion", EXCERPT)) for name, row in sides],
    }


def _facts(row: Row) -> str:
    facts = [f"reward {number(row.get('reward'))}"]
    if row.get("advantage") is not None:
        facts.append(f"advantage {row['advantage']:+.3f}")
    if row.get("is_truncated"):
        facts.append("cut off")
    return ", ".join(facts)
