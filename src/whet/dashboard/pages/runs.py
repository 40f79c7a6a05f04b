"""The list of runs: filtered and sorted by its URL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, Words
from whet.dashboard.library import LibraryRun, RunKind, RunQuery, RunState
from whet.dashboard.pages.rendering import PageRoute, address, render

router = APIRouter(route_class=PageRoute)
PAGE = 100
Column = Literal["name", "state", "step", "reward", "started", "took"]
STATE_ORDER: tuple[RunState, ...] = ("running", "starting", "queued", "failed", "stopped", "finished", "unknown")


@router.get("/runs")
def runs_page(
    request: Request,
    call: Call,
    kind: RunKind | Literal[""] = "",
    state: RunState | Literal[""] = "",
    owner: Words = "",
    search: Words = "",
    sort: Column | Literal[""] = "",
    descending: bool = False,
    cursor: Words = "",
) -> Response:
    query = RunQuery(kind or None, state or None, owner or None, search, PAGE, cursor or None)
    listed = call.data.library.runs(call.viewer, query)
    filters = {"kind": kind, "state": state, "owner": owner, "search": search}
    order = {"sort": sort, "descending": "true" if descending else ""}
    heads = {
        column: {
            "url": address(
                "", filters | {"sort": column, "descending": "true" if _turned(column, sort, descending) else ""}
            ),
            "order": ("descending" if descending else "ascending") if column == sort else None,
        }
        for column in get_args(Column)
    }
    return render(
        request,
        "runs.html",
        runs=sorted_runs(listed.items, sort, descending) if sort else listed.items,
        filters=filters,
        filtered=any(filters.values()),
        order=order,
        heads=heads,
        states=STATE_ORDER[:-1],
        kinds=get_args(RunKind),
        state_urls={one: address("", filters | order | {"state": "" if one == state else one}) for one in STATE_ORDER},
        older=address("", filters | order | {"cursor": listed.next}) if listed.next else None,
        first=address("", filters | order) if cursor else None,
    )


def _turned(column: str, sort: str, descending: bool) -> bool:
    """Whether a click on a column's head sorts downwards: numbers do at first."""
    return not descending if column == sort else column not in ("name", "state")


def sorted_runs(runs: Sequence[LibraryRun], column: Column, descending: bool) -> list[LibraryRun]:
    """By a column; runs without its value come last either way."""

    def key(run: LibraryRun) -> float | str | None:
        if column == "name":
            return run.name.casefold()
        if column == "state":
            return STATE_ORDER.index(run.state)
        if column == "step":
            return run.step
        if column == "reward":
            return run.reward
        if column == "started":
            return run.started_at or run.submitted_at or run.updated_at
        return run.ended_at - run.started_at if run.ended_at and run.started_at else None

    known = [run for run in runs if key(run) is not None]
    known.sort(key=key, reverse=descending)  # type: ignore[arg-type]
    return known + [run for run in runs if key(run) is None]
