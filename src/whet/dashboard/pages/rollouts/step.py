"""One step of training: its metrics, how rewards, advantages and lengths are spread, and its groups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from whet.dashboard.call import Call, RunId, Step
from whet.dashboard.data.rollouts import distributions, groups
from whet.dashboard.data.series import SeriesColumns
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, address, render, run_path
from whet.dashboard.pages.rollouts.listing import Texts, texts_of
from whet.display.chart import Bin, HistogramBars
from whet.display.page.formats import compact
from whet.display.text import number
from whet.records.heads import Filter

router = APIRouter(route_class=PageRoute)
MOST_GROUPS = 200
COLUMNS = {"reward": "Rewards", "advantage": "Advantages", "output_tokens": "Tokens of a rollout"}
ORDER = ("reward", "policy", "optim", "groups", "rollouts", "seq_len", "time", "perf")
"""Groups of metrics that come first."""


@router.get("/runs/{run}/steps")
def newest_step_page(request: Request, call: Call, run: RunId) -> Response:
    library_run = call.run(run)
    here = run_path(request, library_run)
    return RedirectResponse(f"{here}/steps/{library_run.step}" if library_run.step else here, status_code=303)


@router.get("/runs/{run}/steps/{step}")
def step_page(request: Request, call: Call, run: RunId, step: Step) -> Response:
    library_run = call.run(run)
    here = run_path(request, library_run)
    part = f"step_{step:06d}"
    spread: Mapping[str, Any] = {}
    of_step: Mapping[str, Any] = {"items": [], "next": None}
    texts: Texts = {}
    if library_run.kind == "training" and library_run.directory is not None:
        with call.data.stores.use(library_run) as opened:
            spread = distributions(opened, Filter(part=part))["histograms"]
            of_step = groups(opened, Filter(part=part), 0, MOST_GROUPS)
            texts = texts_of(opened, [opened.store.head(one["first"]) for one in of_step["items"]])
    return render(
        request,
        "step.html",
        run=library_run,
        step=step,
        metrics=_metrics(call.data.series, library_run, step),
        histograms=list(_histograms(spread)),
        groups=of_step["items"],
        texts=texts,
        here=here,
        more=of_step["next"] is not None,
        rollouts_link=address(f"{here}/rollouts", {"part": part}) if of_step["items"] else None,
        previous_link=f"{here}/steps/{step - 1}" if step > 1 else None,
        next_link=f"{here}/steps/{step + 1}" if step < library_run.step else None,
        empty=f"It has not been trained yet: the run is at step {library_run.step}."
        if step > library_run.step
        else "Its metrics are not kept.",
    )


def _metrics(series: SeriesColumns, run: LibraryRun, step: int) -> dict[str, list[tuple[str, str]]]:
    """The metrics of a step, grouped; nothing where there are none."""
    if run.directory is None:
        return {}
    columns = series.of(run)
    with columns.lock:
        at = bisect_left(columns.steps, step)
        if at == len(columns.steps) or columns.steps[at] != step:
            return {}
        return _grouped({name: values[at] for name, values in sorted(columns.values.items())})


def _grouped(row: Mapping[str, float]) -> dict[str, list[tuple[str, str]]]:
    """The metrics of a step by the first part of their names."""
    grouped: dict[str, list[tuple[str, str]]] = {}
    for name, value in row.items():
        prefix, _, rest = name.partition("/")
        if value != value:  # a step without this metric
            continue
        grouped.setdefault(prefix if rest else "step", []).append((rest or name, compact(value)))
    first = [name for name in ORDER if name in grouped]
    return {name: grouped[name] for name in dict.fromkeys([*first, *grouped])}


def _histograms(spread: Mapping[str, Any]) -> Iterator[tuple[str, HistogramBars]]:
    """(title, bars) by column and environment."""
    for column, title in COLUMNS.items():
        if column not in spread:
            continue
        edges, by_name = spread[column]["edges"], spread[column]["counts"]
        for name, counts in by_name.items():
            label = f"{title}, {name}" if len(by_name) > 1 else title
            bins = [Bin(low, high, count) for low, high, count in zip(edges, edges[1:], counts, strict=False)]
            if edges[0] == edges[-1]:
                bins = [Bin(edges[0], edges[0], sum(counts))]
            mean = number(round(spread[column]["means"][name], 3) + 0.0)  # no negative zero
            yield f"{label} (mean {mean})", HistogramBars(bins)
