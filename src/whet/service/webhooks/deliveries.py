"""What is to be sent, as rows: an event is queued in the transaction of the change that it reports.

A delivery is claimed before it is sent, and its claim is its next attempt: a sender that is killed leaves nothing to
clean up, and what it sent may be sent again with the same id and the same body.
"""

from __future__ import annotations

import json
import random
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from whet.hub.answers import maybe, moment
from whet.hub.domain.cipher import Cipher
from whet.service.storage.tables import Delivery, RunRow, Webhook

EVENTS = ("run.queued", "run.starting", "run.running", "run.finished", "run.failed", "run.stopped")
PAUSES_S = (60.0, 300.0, 900.0, 2700.0, 7200.0, 14_400.0, 25_200.0, 36_000.0)
"""Before each repetition; a day in all."""
JITTER = 0.1
CLAIM_S = 60.0
"""After which what was being sent by a sender that is gone is sent again; longer than any attempt takes."""
KEPT_S = 30 * 86_400.0
AT_ONCE = 4
"""Deliveries of one webhook that are sent at the same time."""
LONGEST_ANSWER = 200


@dataclass(frozen=True, slots=True)
class Sending:
    """One attempt."""

    id: str
    webhook: str
    url: str
    secret: str
    body: str
    attempt: int  # from 1


def enqueue(session: Session, event: str, run: RunRow, now: float) -> None:
    """Queue an event for each webhook of the run's owner that wants it, in the transaction of the change."""
    assert event in EVENTS
    hooks = session.scalars(select(Webhook).where(Webhook.owner == run.owner, Webhook.deleted_at.is_(None)))
    for hook in hooks:
        if event not in hook.events:
            continue
        identity = secrets.token_hex(16)
        body = {"event": event, "id": identity, "at": moment(now), "run": run_in_event(run)}
        session.add(
            Delivery(
                id=identity,
                webhook_id=hook.id,
                event=event,
                body=json.dumps(body),
                state="waiting",
                next_at=now,
                created_at=now,
            )
        )


def run_in_event(run: RunRow) -> dict[str, Any]:
    """What of a run an event says: nothing of its config, files or rollouts."""
    plain = {
        name: getattr(run, name)
        for name in ("id", "owner", "user", "name", "kind", "model", "state", "reason", "step", "max_steps", "attempt")
    }
    times = {name: maybe(getattr(run, name)) for name in ("submitted_at", "started_at", "ended_at")}
    return {**plain, "environments": list(run.labels), **times, "seconds": run.seconds, "cost": run.cost}


def anything_due(session: Session, now: float) -> bool:
    query = select(Delivery.id).where(Delivery.state == "waiting", Delivery.next_at <= now).limit(1)
    return session.scalar(query) is not None


def claim(session: Session, cipher: Cipher, now: float, most: int, busy: dict[str, int] | None = None) -> list[Sending]:
    """Up to `most` attempts to make now, the longest waiting first; `busy` counts the attempts of each webhook."""
    counts = dict(busy or {})
    query = select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id)
    query = query.where(Delivery.state == "waiting", Delivery.next_at <= now).order_by(Delivery.next_at, Delivery.id)
    claimed: list[Sending] = []
    for row, hook in session.execute(query.limit(1000)):
        if len(claimed) >= most:
            break
        if counts.get(hook.id, 0) >= AT_ONCE:
            continue
        secret = cipher.decrypt(hook.secret, secret_owner(hook.id))
        if hook.deleted_at is not None or secret is None:
            row.state = "given_up"
            row.answer = "the webhook was deleted" if hook.deleted_at is not None else "its secret cannot be read"
            continue
        counts[hook.id] = counts.get(hook.id, 0) + 1
        row.attempts += 1
        row.next_at = now + CLAIM_S
        claimed.append(Sending(row.id, hook.id, hook.url, secret, row.body, row.attempts))
    return claimed


def ended(session: Session, one: Sending, delivered: bool, answer: str, now: float, draw: random.Random) -> None:
    """What came of an attempt. Without effect where a later attempt was begun meanwhile."""
    values: dict[str, Any] = {"answer": answer[:LONGEST_ANSWER], "state": "delivered" if delivered else "waiting"}
    if not delivered:
        if one.attempt > len(PAUSES_S):
            values["state"] = "given_up"
        else:
            values["next_at"] = now + PAUSES_S[one.attempt - 1] * draw.uniform(1 - JITTER, 1 + JITTER)
    same = (Delivery.id == one.id, Delivery.attempts == one.attempt, Delivery.state == "waiting")
    session.execute(update(Delivery).where(*same).values(**values))


def forget_old(session: Session, now: float) -> None:
    """Remove what was delivered or given up long ago."""
    old = (Delivery.state != "waiting", Delivery.created_at < now - KEPT_S)
    session.execute(delete(Delivery).where(*old))


def waiting(session: Session) -> int:
    """How many deliveries are not over."""
    return int(session.scalar(select(func.count()).select_from(Delivery).where(Delivery.state == "waiting")) or 0)


def secret_owner(webhook: str) -> str:
    """What a signing secret's ciphertext is bound to."""
    return f"webhook/{webhook}"
