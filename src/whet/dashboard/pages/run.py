"""A run: its curves, what is wrong with it, what it waits for, its machine and its newest log lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from whet.dashboard.call import Call, DashboardCall, RunId
from whet.dashboard.data.facts import evaluations as held_out
from whet.dashboard.data.facts import progress
from whet.dashboard.data.files import log_lines
from whet.dashboard.data.series import metrics
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, render, root_of, wants_drawings
from whet.display.page.formats import sparkline
from whet.records.log import LogQuery
from whet.rl.report.data import Columns, drawn, extremes, figures_of

router = APIRouter(route_class=PageRoute)
MOST_CHOSEN = 12
POINTS, SPARK_POINTS = 300, 100
"""Of a curve that the server draws, and of a small line."""
LINES = 30
MOST_FAILURES = 5
RECENT = 20
"""Steps whose mean time tells how long those that are left take."""
PATIENCE = 0.25
"""Seconds that a page waits for the metrics, and for the doctor; of a long run it shows what is known by then."""


@router.get("/runs/{run}")
def run_page(
    request: Request,
    call: Call,
    run: RunId,
    metric: Annotated[list[str] | None, Query(max_length=MOST_CHOSEN)] = None,
) -> Response:
    library_run = call.run(run)
    if library_run.kind not in ("training", "sft"):
        return RedirectResponse(f"{root_of(request)}/runs/{library_run.id}/report", status_code=303)
    chosen = list(dict.fromkeys(metric or []))
    points = POINTS if wants_drawings(request) else SPARK_POINTS
    curves: dict[str, Any] = {"steps": [], "series": {}}
    evaluations: list[dict[str, Any]] = []
    findings: list[dict[str, Any]] | None = []
    now: dict[str, Any] = {}
    if library_run.directory is not None:
        curves = metrics(call.data.series, library_run, (), points, patience=PATIENCE)
        evaluations = [{**score, **one} for one in held_out(library_run) for score in one["scores"]]
        findings = call.data.findings(library_run, PATIENCE)
        now = progress(library_run, call.data.use)
    series = curves["series"]
    figures = figures_of(series, series, library_run.environments, chosen) if curves["steps"] else []
    marks = _marks(evaluations)
    if figures and marks:
        figures[0] = replace(figures[0], note="circles: held-out tasks")
    if wants_drawings(request):
        figures = [drawn(figure, curves["steps"], series, marks) for figure in figures]
    return render(
        request,
        "run.html",
        run=library_run,
        series=series,
        newest={name: extremes(values)[0] for name, values in series.items()},
        held_out_means=_held_out_means(evaluations),
        figures=figures,
        metrics=_rows(series, chosen),
        findings=findings,
        unread=1 - curves.get("read", 1),
        last_note=now.get("status", {}).get("last_note"),
        left=_seconds_left(call, library_run),
        processes=now.get("processes"),
        held_out=_held_out(evaluations),
        lines=log_lines(library_run, LogQuery(limit=LINES, tail=True))["lines"],
        failures=_failures(now, evaluations),
        waits_for="; ".join(now.get("waits_for", ())),
    )


def _failures(now: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why rollouts of the newest step, and of the newest held-out evaluation, failed."""
    failures = now.get("status", {}).get("failures")
    newest = [row for row in evaluations if row["step"] == evaluations[-1]["step"]]
    examples = [failures, *(row.get("error_examples") for row in newest)]
    lines = [f"{name}: {text}" for one in examples if isinstance(one, Mapping) for name, text in one.items()]
    return list(dict.fromkeys(line[:1_000] for line in lines))[:MOST_FAILURES]


def _seconds_left(call: DashboardCall, run: LibraryRun) -> float | None:
    """How long the steps that are left of a run in progress take, by the mean of the recent ones."""
    if run.state != "running" or run.directory is None or not run.max_steps:
        return None
    name = "time/step"
    recent = metrics(call.data.series, run, [name], after=max(0, run.step - RECENT), patience=0)["series"].get(name, ())
    times = [value for value in recent if value is not None]
    return sum(times) / len(times) * (run.max_steps - run.step) if times else None


def _held_out_means(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """(when, mean held-out reward) of each evaluation, each environment counting alike; sampled rather than greedy."""
    rows = [row for row in evaluations if row["sampling"] != "greedy"] or evaluations
    rewards: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["reward"] is not None:
            rewards[row["step"], row["moment"]].append(row["reward"])
    return [
        ("before training" if moment == "before" else f"at step {step}", sum(of_step) / len(of_step))
        for (step, moment), of_step in rewards.items()
    ]


def _marks(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    marks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in evaluations:
        if row["sampling"] != "greedy" and row["reward"] is not None:
            marks[f"reward/{row['environment']}/mean"].append((float(row["step"]), row["reward"]))
    return marks


def _held_out(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first and the newest scores of each environment and way of sampling."""
    steps = sorted({int(row["step"]) for row in evaluations})
    shown = steps if len(steps) < 3 else [steps[0], steps[-1]]
    scores: dict[tuple[str, str], dict[int, float | None]] = defaultdict(dict)
    for row in evaluations:
        scores[row["environment"], row["sampling"]][int(row["step"])] = row["reward"]
    rows = []
    for (name, sampling), by_step in scores.items():
        here = [by_step.get(step) for step in shown]
        change = here[-1] - here[0] if here[0] is not None and here[-1] is not None else None
        rows.append({"name": name, "sampling": sampling, "scores": here, "change": change})
    return {"steps": shown, "rows": rows}


def _rows(series: Columns, chosen: Sequence[str]) -> list[dict[str, Any]]:
    """All metrics with their newest and extreme values; those that were chosen first."""
    rows = []
    for name in sorted(series, key=lambda name: (name not in chosen, name)):
        newest, low, high = extremes(series[name])
        line = sparkline(series[name])
        rows.append({"name": name, "newest": newest, "low": low, "high": high, "line": line, "chosen": name in chosen})
    return rows
