"""The checkpoints of a run: sizes, faults, downloads, and what the service lets a viewer do with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, RunId
from whet.dashboard.data.checkpoints import checkpoints
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, render, root_of

router = APIRouter(route_class=PageRoute)
DEPLOYMENTS = "/deployments"
"""A site with this page can serve checkpoints."""


@router.get("/runs/{run}/checkpoints")
def checkpoints_page(request: Request, call: Call, run: RunId) -> Response:
    library_run = call.run(run)
    root = root_of(request)
    data = f"{root}{call.site.data}/runs/{library_run.id}/checkpoints"
    listed = checkpoints(call.data.checks, library_run) if library_run.directory is not None else []
    deploys = any(item.path == DEPLOYMENTS for item in call.site.nav)
    return render(
        request,
        "checkpoints.html",
        run=library_run,
        checkpoints=[_row(one, library_run, root, data, deploys) for one in reversed(listed)],
        actions=deploys,
        export="" if deploys else str(library_run.directory),
    )


def _row(one: Mapping[str, Any], run: LibraryRun, root: str, data: str, deploys: bool) -> dict[str, Any]:
    """One checkpoint; each action leads to a page that asks first."""
    step, whole = one["step"], one["fault"] is None
    actions = []
    if deploys and one["deployable"]:
        actions.append(("deploy", f"{root}{DEPLOYMENTS}/new?run={run.id}&step={step}"))
    if whole and "restart" in run.details.get("may", ()):
        actions.append(("restart from here", f"{root}/runs/{run.id}/restart?step={step}"))
    downloads = [(what, f"{data}/{step}/archive?what={what}") for what in one["archives"]] if whole else []
    return {**one, "downloads": downloads, "actions": actions}
