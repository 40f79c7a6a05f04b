"""Routes of webhooks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from whet.hub import policy
from whet.hub.api.call import CallParameter, Cursor, Identity, Limit, RequestBody, Words, action, page
from whet.hub.storage.database import database_now
from whet.service.webhooks import hooks
from whet.service.webhooks.addresses import LONGEST

router = APIRouter()
Event = Literal["run.queued", "run.starting", "run.running", "run.finished", "run.failed", "run.stopped"]
OwnerName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=39)]


class NewWebhook(RequestBody):
    owner: OwnerName
    url: Words = Field(max_length=LONGEST)
    events: list[Event] = Field(min_length=1, max_length=20)


@router.get("/webhooks")
@action(policy.MAINTAIN)
def list_webhooks(
    call: CallParameter, owner: Annotated[OwnerName, Query()], limit: Limit = 50, cursor: Cursor = 0
) -> dict[str, Any]:
    with call.read() as (session, caller):
        return page(hooks.of_owner(session, caller, owner), cursor, limit)


@router.post("/webhooks", status_code=201)
@action(policy.MAINTAIN)
def add_webhook(call: CallParameter, body: NewWebhook) -> dict[str, Any]:
    allowed = getattr(call.request.app.state, "webhook_networks", ())
    with call.write() as (session, caller):
        now = database_now(session)
        return hooks.add(session, call.hub.cipher, caller, body.owner, body.url, body.events, now, allowed)


@router.delete("/webhooks/{webhook}", status_code=204)
@action(policy.MAINTAIN)
def delete_webhook(call: CallParameter, webhook: Identity) -> None:
    with call.write() as (session, caller):
        hooks.remove(session, caller, webhook, database_now(session))


@router.get("/webhooks/{webhook}/deliveries")
@action(policy.MAINTAIN)
def list_deliveries(call: CallParameter, webhook: Identity, limit: Limit = 50, cursor: Cursor = 0) -> dict[str, Any]:
    with call.read() as (session, caller):
        items, following = hooks.deliveries_of(session, caller, webhook, cursor, limit)
        return {"items": items, "next": following}
