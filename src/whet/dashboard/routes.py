"""The HTTP routes of the runs' data. docs/design/service.md describes each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from whet.dashboard.call import Call, DataRoute, RunId, Words
from whet.dashboard.library import RunKind, RunQuery, RunState

router = APIRouter(route_class=DataRoute)
Limit = Annotated[int, Query(ge=1, le=200)]


@router.get("/runs")
def list_runs(
    call: Call,
    kind: RunKind | Literal[""] = "",
    state: RunState | Literal[""] = "",
    owner: Words = "",
    search: Words = "",
    limit: Limit = 50,
    cursor: Words = "",
) -> dict[str, Any]:
    query = RunQuery(kind or None, state or None, owner or None, search, limit, cursor or None)
    found = call.data.library.runs(call.viewer, query)
    return {"items": [run.view() for run in found.items], "next": found.next}


@router.get("/runs/{run}")
def get_run(call: Call, run: RunId) -> dict[str, Any]:
    return call.run(run).view()
