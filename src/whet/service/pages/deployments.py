"""Deployments: the list, a new one from a checkpoint, how one is called, its end."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from whet.dashboard.data.checkpoints import checkpoints
from whet.dashboard.library import RunQuery
from whet.dashboard.pages.rendering import PageRoute, render, root_of
from whet.hub.api.call import Identity, action
from whet.hub.pages.routes import PageCall
from whet.hub.policy import Role
from whet.service.answers import DeploymentAnswer
from whet.service.api import deployments as api
from whet.service.domain.deployments import DEPLOY, SEE
from whet.service.pages.forms import ALL, Text, confirm, filled, form_page, sent, viewer_in

router = APIRouter(route_class=PageRoute)
MOST_RUNS = 100


@router.get("/deployments")
@action(SEE)
def deployments_page(request: Request, call: PageCall) -> Response:
    listed = api.list_deployments(call, ALL)
    return render(request, "deployments.html", deployments=listed.items)


@router.get("/deployments/new")
@action(SEE)
def new_page(request: Request, call: PageCall, run: str = "", step: str = "", name: str = "") -> Response:
    dashboard, viewer = request.state.dashboard, viewer_in(request)
    runs = [
        one
        for kind in ("training", "sft")
        for one in dashboard.data.library.runs(viewer, RunQuery(kind=kind, limit=MOST_RUNS)).items
        if one.directory is not None and not one.by_client and viewer.roles.get(one.owner, Role.NONE) >= Role.MEMBER
    ]
    steps: list[int] = []
    if run:
        shown = dashboard.run(run)
        listed = checkpoints(dashboard.data.checks, shown) if shown.directory is not None else []
        steps = [one["step"] for one in listed if one["deployable"]]
    return form_page(
        request,
        "deployment_new.html",
        runs=runs,
        run=run,
        steps=sorted(steps, reverse=True),
        step=step,
        name=name,
    )


@router.post("/deployments")
@action(DEPLOY)
def create(request: Request, call: PageCall, run: Text, step: Text = "", name: Text = "") -> Response:
    def do() -> DeploymentAnswer:
        return api.create_deployment(call, filled(api.DeploymentRequest, run=run, step=step, name=name.strip()))

    def page() -> Response:
        if request.state.made is None:
            return new_page(request, call, run, step, name)
        return RedirectResponse(f"{root_of(request)}/deployments/{request.state.made.id}", status_code=303)

    return sent(request, do, None, page)


@router.get("/deployments/{deployment}")
@action(SEE)
def deployment_page(request: Request, call: PageCall, deployment: Identity) -> Response:
    shown = api.show_deployment(call, deployment)
    return render(request, "deployment.html", one=shown, health=_health(shown))


def _health(answer: DeploymentAnswer) -> list[tuple[str, str]]:
    """What the serving process says, in pairs."""
    said = {} if answer.health is None else answer.health.model_dump(exclude_none=True)
    return [(name.replace("_", " "), str(value)) for name, value in said.items()]


@router.get("/deployments/{deployment}/delete")
@action(SEE)
def ask_to_delete(request: Request, call: PageCall, deployment: Identity) -> Response:
    return confirm(
        request,
        title=f"Delete {api.show_deployment(call, deployment).model}?",
        text="It answers no request any more. The run and its checkpoints stay; it can be deployed again.",
        button="Delete the deployment",
        target=f"/deployments/{deployment}/delete",
        back=f"/deployments/{deployment}",
    )


@router.post("/deployments/{deployment}/delete")
@action(DEPLOY)
def delete(request: Request, call: PageCall, deployment: Identity) -> Response:
    again = partial(ask_to_delete, request, call, deployment)
    return sent(request, lambda: api.delete_deployment(call, deployment), "/deployments", again)
