"""The trials of versions: queued, claimed by the worker, ended, or queued again after a kill."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from whet.hub.domain.access import Caller, environment_for, permit
from whet.hub.domain.audit import record
from whet.hub.domain.hub import Hub
from whet.hub.domain.pushes import queued_action
from whet.hub.errors import HubError, not_found
from whet.hub.storage.tables import ActionRow

ATTEMPTS = 3
LOG_BYTES = 1 << 20


def action_for(session: Session, caller: Caller, identity: str) -> ActionRow:
    """An action of an environment that the caller may do its action with."""
    row = session.get(ActionRow, identity)
    if row is None:
        permit(caller, visible=False, what="action")
        raise not_found("action")
    environment = row.version.environment
    try:
        environment_for(session, caller, environment.owner.name, environment.name)
    except HubError as error:
        raise (not_found("action") if error.code == "not_found" else error) from None
    return row


def retry(session: Session, caller: Caller, identity: str, now: float) -> ActionRow:
    """A new action for the same version."""
    old = action_for(session, caller, identity)
    busy = select(ActionRow.id).where(ActionRow.version_id == old.version_id)
    if session.scalar(busy.where(ActionRow.state.in_(("queued", "running")))) is not None:
        raise HubError("conflict", "an action of this version is queued or running already.")
    row = queued_action(old.version, now)
    session.add(row)
    session.flush()
    environment = old.version.environment
    target = f"{environment.env_id}@{old.version.version}"
    record(session, caller.name, "action.retry", environment.owner.name, target, now)
    session.refresh(row)
    return row


def claim(hub: Hub, worker: str) -> ActionRow | None:
    """The oldest queued action, now running for `worker`."""
    with hub.database.write() as session:
        query = select(ActionRow).where(ActionRow.state == "queued").order_by(ActionRow.queued_at, ActionRow.id)
        row = session.scalar(query.limit(1))
        if row is not None:
            row.state, row.claimed_by, row.started_at = "running", worker, hub.clock()
            row.attempt += 1
        return row


def finish(hub: Hub, identity: str, worker: str, passed: bool, summary: str, log: str) -> None:
    """Record how an action ended, unless its version was deleted or another worker has it."""
    with hub.database.write() as session:
        row = session.get(ActionRow, identity)
        if row is not None and row.state == "running" and row.claimed_by == worker:
            row.state, row.summary = "passed" if passed else "failed", summary
            row.log, row.finished_at = log.encode()[-LOG_BYTES:].decode("utf-8", "ignore"), hub.clock()


def requeue(hub: Hub) -> int:
    """At start: what an earlier server was running is queued again, a few times; returns how many."""
    with hub.database.write() as session:
        rows = list(session.scalars(select(ActionRow).where(ActionRow.state == "running")))
        for row in rows:
            row.claimed_by = None
            if row.attempt < ATTEMPTS:
                row.state = "queued"
            else:
                row.state, row.finished_at = "failed", hub.clock()
                row.summary = f"the hub ended while it ran, {row.attempt} times"
        return len(rows)
