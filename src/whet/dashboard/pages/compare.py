"""Two to four runs over one another, or the choice of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from whet.dashboard.call import Call
from whet.dashboard.data.comparing import compare
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun, RunQuery
from whet.dashboard.pages.rendering import PageRoute, address, render, wants_drawings
from whet.rl.report.data import Figure, drawn, is_share, title_of

router = APIRouter(route_class=PageRoute)
MOST_RUNS = 4
OFFERED = 50
POINTS = 300
LONGEST_VALUE = 300


@router.get("/compare")
def compare_page(
    request: Request,
    call: Call,
    run: Annotated[list[str] | None, Query(max_length=20)] = None,
    metric: Annotated[list[str] | None, Query(max_length=12)] = None,
) -> Response:
    ids = list(dict.fromkeys(one for one in run or [] if one))
    if len(ids) > MOST_RUNS:
        raise DashboardError("invalid", f"at most {MOST_RUNS} runs can be compared; these are {len(ids)}.")
    runs = [call.run(id) for id in ids]
    if len(runs) < 2:
        offered = call.data.library.runs(call.viewer, RunQuery(limit=OFFERED)).items
        others = [one for one in offered if one.id not in ids and one.kind in ("training", "sft")]
        return render(request, "compare_choice.html", runs=[*runs, *others], chosen=ids)
    comparison = compare(call.data, runs, [*(metric or []), "reward/"] if metric else (), POINTS)
    labels = _labels(runs)
    names = [name for name in comparison["names"] if not metric or name in metric or name == "reward/mean"]
    figures = [_figure(name, ids, labels, comparison["curves"], wants_drawings(request)) for name in names]
    return render(
        request,
        "compare.html",
        runs=runs,
        labels=labels,
        without={one.id: query_url_of([id for id in ids if id != one.id]) for one in runs},
        figures=figures,
        config={path: _values(values) for path, values in sorted(comparison["config"].items())},
        held_out=[_scores(row) for row in comparison["held_out"]],
        common_steps=comparison["common_steps"],
    )


def query_url_of(ids: Sequence[str]) -> str:
    return address("", [("run", id) for id in ids])


def _labels(runs: Sequence[LibraryRun]) -> list[str]:
    """Their names; where two are the same, with the id."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else f"{run.name} ({run.id[-8:]})" for run in runs]


def _figure(name: str, ids: Sequence[str], labels: Sequence[str], curves: Sequence[Any], with_drawing: bool) -> Figure:
    """One metric, a line for each run. Steps that a run does not have are left out of its line."""
    steps = sorted({step for one in curves if one is not None for step in one["steps"]})
    series = {}
    for id, one in zip(ids, curves, strict=True):
        known = {} if one is None else dict(zip(one["steps"], one["series"].get(name, []), strict=False))
        series[f"{id}:{name}"] = [known.get(step) for step in steps]
    share = name.startswith("reward/") and is_share(series, series)
    figure = Figure(title_of(name), list(series), list(labels), share, wide=name == "reward/mean")
    return drawn(figure, steps, series, {}) if with_drawing else figure


def _scores(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of held-out scores with the best marked."""
    rewards = [None if one is None else one["reward"] for one in row["rewards"]]
    best = max((reward for reward in rewards if reward is not None), default=None)
    scores = [
        None if one is None or one["reward"] is None else {**one, "best": one["reward"] == best}
        for one in row["rewards"]
    ]
    return {"environment": row["environment"], "sampling": row["sampling"], "scores": scores}


def _values(values: Sequence[Any]) -> list[dict[str, Any]]:
    """How the values of one setting are shown, and which are not the most frequent."""
    texts = [value if value == "absent" else json.dumps(value, ensure_ascii=False, default=str) for value in values]
    usual = max(texts, key=texts.count)
    rare = texts.count(usual) > 1
    return [{"text": text[:LONGEST_VALUE], "changed": text != usual if rare else True} for text in texts]
