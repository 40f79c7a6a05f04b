"""Routes of webhooks."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from whet.hub import policy
from whet.hub.answers import Page
from whet.hub.api.call import CallParameter, Identity, PartOfList, RequestBody, Words, action
from whet.hub.storage.database import database_now
from whet.service.answers import DeliveryAnswer, NewWebhookAnswer, WebhookAnswer
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
def list_webhooks(call: CallParameter, part: PartOfList, owner: Annotated[OwnerName, Query()]) -> Page[WebhookAnswer]:
    with call.read() as (session, caller):
        return part.of(hooks.of_owner(session, caller, owner))


@router.post("/webhooks", status_code=201)
@action(policy.MAINTAIN)
def add_webhook(call: CallParameter, body: NewWebhook) -> NewWebhookAnswer:
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
def list_deliveries(call: CallParameter, part: PartOfList, webhook: Identity) -> Page[DeliveryAnswer]:
    with call.read() as (session, caller):
        return hooks.deliveries_of(session, caller, webhook, part.cursor, part.limit)
