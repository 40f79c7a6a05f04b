"""The audit log: entries that can be added, and not changed without it being seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from whet.hub.storage.tables import AuditEntry, HubState

START = "0" * 64
HASHED = ("number", "at", "actor", "owner", "action", "target", "detail", "previous")


def record(
    session: Session,
    actor: str,
    action: str,
    owner: str,
    target: str,
    now: float,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry in the transaction of the change that it records."""
    state = session.get_one(HubState, 1)
    entry = AuditEntry(
        number=state.audit_number + 1,
        at=now,
        actor=actor,
        owner=owner,
        action=action,
        target=target,
        detail=json.dumps(detail or {}, sort_keys=True),
        previous=state.audit_hash,
    )
    entry.hash = _hash(entry)
    session.add(entry)
    state.audit_number, state.audit_hash = entry.number, entry.hash


def _hash(entry: AuditEntry) -> str:
    fields = [getattr(entry, name) for name in HASHED]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def verify(session: Session) -> tuple[int, int | None]:
    """How many entries there are, and the number of the first that is missing or was changed."""
    state = session.get_one(HubState, 1)
    previous, number = START, 0
    for entry in session.scalars(select(AuditEntry).order_by(AuditEntry.number).execution_options(yield_per=1000)):
        number += 1
        if entry.number != number or entry.previous != previous or entry.hash != _hash(entry):
            return state.audit_number, number
        previous = entry.hash
    if (number, previous) != (state.audit_number, state.audit_hash):
        return state.audit_number, number + 1
    return number, None
