"""The list of runs, and a run."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, Words
from whet.dashboard.library import RunKind, RunQuery, RunState
from whet.dashboard.pages.rendering import PageRoute, render

router = APIRouter(route_class=PageRoute)


@router.get("/runs")
def runs_page(
    request: Request,
    call: Call,
    kind: RunKind | Literal[""] = "",
    state: RunState | Literal[""] = "",
    search: Words = "",
    cursor: Words = "",
) -> Response:
    query = RunQuery(kind or None, state or None, search=search, cursor=cursor or None)
    found = call.data.library.runs(call.viewer, query)
    return render(request, "runs.html", runs=found.items, next=found.next, query=query)
