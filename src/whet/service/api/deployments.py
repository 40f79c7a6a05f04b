"""Routes of deployments; the requests that are answered by them go to another process (`service/deployments/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from whet.hub.answers import Page
from whet.hub.api.call import CallParameter, HubRequest, Identity, PartOfList, RequestBody, Words, action
from whet.hub.errors import HubError
from whet.hub.storage.database import database_now
from whet.service.answers import DeploymentAnswer
from whet.service.deployments.folder import take
from whet.service.domain import deployments
from whet.service.domain.deployments import read_status

router = APIRouter()
OwnerQuery = Annotated[str | None, Query(max_length=39)]


class DeploymentRequest(RequestBody):
    run: Annotated[Words, Field(pattern=r"^[0-9a-f]{16,32}$")]
    step: int | None = Field(None, ge=0, lt=10**18, description="Of a checkpoint; null: the newest.")
    name: Annotated[Words, Field(min_length=1, max_length=64)] | None = None


def data_of(call: HubRequest) -> Path:
    """DATA, the folder of the hub and of the service."""
    return call.hub.uploads.parent


@router.get("/deployments")
@action(deployments.SEE)
def list_deployments(call: CallParameter, part: PartOfList, owner: OwnerQuery = None) -> Page[DeploymentAnswer]:
    with call.read() as (session, caller):
        rows = deployments.visible(session, caller, owner)
    server = read_status(data_of(call))
    return part.of([deployments.view(row, server) for row in rows])


@router.post("/deployments", status_code=201)
@action(deployments.DEPLOY)
def create_deployment(call: CallParameter, body: DeploymentRequest) -> DeploymentAnswer:
    data = data_of(call)
    with call.read() as (session, caller):
        new = deployments.plan(session, caller, data, body.run, body.step, body.name)
    try:
        folder = take(data, new.id, new.source)
    except FileNotFoundError:
        raise HubError(
            "conflict", f"the checkpoint of step {new.source.step} has no weights, or was removed. Choose another step."
        ) from None
    try:
        with call.write() as (session, caller):
            row = deployments.add(session, caller, new, database_now(session))
    except BaseException:
        folder.remove()
        raise
    return deployments.view(row, read_status(data))


@router.get("/deployments/{deployment}")
@action(deployments.SEE)
def show_deployment(call: CallParameter, deployment: Identity) -> DeploymentAnswer:
    with call.read() as (session, caller):
        row = deployments.find(session, caller, deployment)
    return deployments.view(row, read_status(data_of(call)))


@router.delete("/deployments/{deployment}", status_code=204)
@action(deployments.DEPLOY)
def delete_deployment(call: CallParameter, deployment: Identity) -> None:
    with call.write() as (session, caller):
        deployments.end(session, caller, deployment, database_now(session))
