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
ACTIONS = (
    ("deploy", "deploy", "/deployments/new?run={run}&step={step}"),
    ("restart", "restart from here", "/runs/{run}/restart?step={step}"),
)
"""What `may` of a run names, its label, and the page that asks before it is done."""


@router.get("/runs/{run}/checkpoints")
def checkpoints_page(request: Request, call: Call, run: RunId) -> Response:
    found = call.run(run)
    root = root_of(request)
    data = f"{root}{call.site.data}/runs/{found.id}/checkpoints"
    listed = checkpoints(call.data.checks, found) if found.directory is not None else []
    may = found.details.get("may") or ()
    return render(
        request,
        "checkpoints.html",
        run=found,
        checkpoints=[_row(one, found, data, root, may) for one in reversed(listed)],
        actions=any(name in may for name, _, _ in ACTIONS),
        export="" if may else str(found.directory),
        empty="A run writes one every `checkpoint_interval` steps, and one when it ends or is stopped.",
    )


def _row(one: Mapping[str, Any], run: LibraryRun, data: str, root: str, may: Any) -> dict[str, Any]:
    whole = one["fault"] is None
    return {
        **one,
        "downloads": [(what, f"{data}/{one['step']}/archive?what={what}") for what in one["archives"]] if whole else [],
        "actions": [
            (label, root + path.format(run=run.id, step=one["step"]))
            for name, label, path in ACTIONS
            if name in may and whole and (name != "deploy" or one["deployable"])
        ],
    }
