"""What can be done with a run: stop, restart, delete. Each asks on a page of its own first."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from whet.dashboard.data.checkpoints import checkpoints
from whet.dashboard.pages.rendering import PageRoute
from whet.hub.api.call import HubRequest, Identity, action
from whet.hub.errors import HubError
from whet.hub.pages.routes import PageCall
from whet.service.api import runs
from whet.service.domain.access import RUN, SEE
from whet.service.pages.forms import Text, filled, form_page, sent

router = APIRouter(route_class=PageRoute)
What = Literal["stop", "restart", "delete"]
TEXTS: dict[What, tuple[str, str]] = {
    "stop": (
        "Stop the run",
        "It writes a checkpoint first, from which it can be restarted. A queued one does not begin.",
    ),
    "restart": (
        "Restart the run",
        "It is queued again and continues from a checkpoint. Later steps are trained again.",
    ),
    "delete": ("Delete the run", "Its metrics, rollouts, logs and checkpoints are removed for good. Deployments stay."),
}


def what_of(request: Request) -> What:
    """The last part of the path."""
    last = request.url.path.rpartition("/")[2]
    return next(what for what in TEXTS if what == last)


WhatOfPath = Annotated[What, Depends(what_of)]


@router.get("/runs/{run}/stop")
@router.get("/runs/{run}/restart")
@router.get("/runs/{run}/delete")
@action(SEE)
def ask(request: Request, call: PageCall, run: Identity, what: WhatOfPath, step: str = "") -> Response:
    dashboard = request.state.dashboard
    shown = dashboard.run(run)
    button, text = TEXTS[what]
    steps: list[int] = []
    if what == "restart" and shown.directory is not None:
        steps = [one["step"] for one in checkpoints(dashboard.data.checks, shown) if one["fault"] is None]
    allowed = what in shown.details.get("may", ())
    why = "" if allowed else f"This run is {shown.state}, or you may not do this with it."
    return form_page(
        request,
        "run_action.html",
        run=shown,
        what=what,
        button=button,
        text=text,
        steps=sorted(steps, reverse=True),
        caps=_caps(shown.details.get("caps") or {}),
        chosen=step,
        allowed=allowed,
        problem=why,
    )


def _caps(caps: dict[str, Any]) -> list[tuple[str, str, float | None]]:
    """Field, label and value of each cap."""
    seconds = caps.get("seconds")
    hours = None if seconds is None else round(seconds / 3600.0, 3)
    return [("hours", "hours", hours), ("tokens", "tokens", caps.get("tokens")), ("cost", "cost", caps.get("cost"))]


@router.post("/runs/{run}/stop")
@router.post("/runs/{run}/restart")
@router.post("/runs/{run}/delete")
@action(RUN)
def act(
    request: Request,
    call: PageCall,
    run: Identity,
    what: WhatOfPath,
    step: Text = "",
    hours: Text = "",
    tokens: Text = "",
    cost: Text = "",
) -> Response:
    def do() -> Any:
        return _do(call, run, what, step, {"seconds": hours, "tokens": tokens, "cost": cost})

    then = "/runs" if what == "delete" else f"/runs/{run}"
    return sent(request, do, then, partial(ask, request, call, run, what, step))


def _do(call: HubRequest, run: str, what: What, step: str, caps: dict[str, str]) -> Any:
    if what == "stop":
        return runs.stop(call, run)
    if what == "delete":
        return runs.delete_run(call, run)
    if step and not step.isdecimal():
        raise HubError("invalid", "step: it is the number of a checkpoint.")
    try:
        seconds = caps["seconds"] and float(caps["seconds"]) * 3600.0
    except ValueError:
        raise HubError("invalid", "hours: it is a number of hours.") from None
    given = filled(runs.CapsBody, **{**caps, "seconds": seconds})
    return runs.restart(call, run, filled(runs.Restart, step=step, caps=given))
