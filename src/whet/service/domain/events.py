"""Changes of a run's state that others want to learn of."""

from __future__ import annotations

from sqlalchemy.orm import Session

from whet.service.storage.tables import RunRow
from whet.service.webhooks.deliveries import enqueue

RUN_EVENTS = ("run.queued", "run.starting", "run.running", "run.finished", "run.failed", "run.stopped")
CHANGED = "runs changed"


def changed(session: Session, run: RunRow, event: str, now: float) -> None:
    """A run changed its state, in this transaction."""
    assert event in RUN_EVENTS
    session.info.setdefault(CHANGED, []).append((run.id, event, now))
    enqueue(session, event, run, now)
