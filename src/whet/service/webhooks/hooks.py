"""Webhooks of an owner: made with a signing secret that is shown once, listed, deleted."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from whet.hub.answers import Page
from whet.hub.domain.access import Caller, owner_for, permit
from whet.hub.domain.audit import record
from whet.hub.domain.cipher import Cipher
from whet.hub.errors import HubError, not_found
from whet.service.answers import DeliveryAnswer, NewWebhookAnswer, WebhookAnswer
from whet.service.storage.tables import Delivery, Webhook
from whet.service.webhooks.addresses import AddressRefusedError, Network, check_url
from whet.service.webhooks.deliveries import secret_owner

MOST = 20
"""Webhooks of one owner."""
PREFIX = "whsec_"


def add(
    session: Session,
    cipher: Cipher,
    caller: Caller,
    owner: str,
    url: str,
    events: Sequence[str],
    now: float,
    allowed: Sequence[Network] = (),
) -> NewWebhookAnswer:
    """A new webhook with its secret. Raises `HubError` (not_found, forbidden, invalid, too_many)."""
    owner_for(session, caller, owner)
    try:
        target = check_url(url, allowed)
    except AddressRefusedError as error:
        raise HubError("invalid", f"url: {error}", [{"field": "url", "reason": str(error)}]) from None
    count = select(func.count()).select_from(Webhook).where(Webhook.owner == owner, Webhook.deleted_at.is_(None))
    if int(session.scalar(count) or 0) >= MOST:
        raise HubError("too_many", f"{owner} has {MOST} webhooks. Delete some first.")
    identity, secret = secrets.token_hex(8), PREFIX + secrets.token_urlsafe(32)
    row = Webhook(
        id=identity,
        owner=owner,
        user=caller.name,
        url=url,
        events=sorted(set(events)),
        secret=cipher.encrypt(secret, secret_owner(identity)),
        key_id=cipher.key_id,
        created_at=now,
        deleted_at=None,
    )
    session.add(row)
    # A URL may have a token of its receiver in it.
    record(session, caller.name, "webhook.create", owner, identity, now, {"host": target.host, "events": row.events})
    return NewWebhookAnswer(**WebhookAnswer.model_validate(row).model_dump(), secret=secret)


def of_owner(session: Session, caller: Caller, owner: str) -> list[WebhookAnswer]:
    """An owner's webhooks, oldest first."""
    owner_for(session, caller, owner)
    query = select(Webhook).where(Webhook.owner == owner, Webhook.deleted_at.is_(None))
    return [
        WebhookAnswer.model_validate(row) for row in session.scalars(query.order_by(Webhook.created_at, Webhook.id))
    ]


def remove(session: Session, caller: Caller, identity: str, now: float) -> None:
    """Delete a webhook; what waits for it is not sent any more."""
    row = find(session, caller, identity)
    row.deleted_at = now
    waits = (Delivery.webhook_id == row.id, Delivery.state == "waiting")
    session.execute(update(Delivery).where(*waits).values(state="given_up", answer="the webhook was deleted"))
    record(session, caller.name, "webhook.delete", row.owner, row.id, now)


def deliveries_of(session: Session, caller: Caller, identity: str, cursor: int, limit: int) -> Page[DeliveryAnswer]:
    """What was sent to a webhook or waits, the newest first, and where the list continues."""
    row = find(session, caller, identity)
    query = select(Delivery).where(Delivery.webhook_id == row.id).order_by(Delivery.created_at.desc(), Delivery.id)
    rows = list(session.scalars(query.offset(cursor).limit(limit + 1)))
    items = [DeliveryAnswer.model_validate(one) for one in rows[:limit]]
    return Page(items=items, next=str(cursor + limit) if len(rows) > limit else None)


def find(session: Session, caller: Caller, identity: str) -> Webhook:
    """A webhook that the caller may do its action with."""
    what = f"webhook {identity}"
    row = session.get(Webhook, identity)
    if row is None or row.deleted_at is not None:
        permit(caller, visible=False, what=what)
        raise not_found(what)
    owner_for(session, caller, row.owner, what=what)
    return row
