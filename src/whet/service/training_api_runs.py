"""Models of the training API as runs of the service: rows of its database, and the folders that its server writes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from whet.dashboard.library import LibraryRun, RunQuery, RunState
from whet.hub.storage.database import database_now
from whet.parsing import as_whole
from whet.records.directory import METRICS, RUN_CONFIG
from whet.records.tail import last_row
from whet.service.training_api import FOLDER
from whet.tinker.names import LIVE_S, SILENT, model_id, run_id, shown_name
from whet.tinker.storage.tables import TinkerModel, TinkerSession

DETAILS: dict[str, Any] = {
    "priority": 0,
    "attempt": 0,
    "cost": 0.0,
    "tokens": 0,
    "place": None,
    "pinned": [],
    "may": [],
}
"""Fields of other runs. The service does not queue, charge, stop and restart these."""


def list_models(
    session: Session, data: Path, owners: Collection[str], query: RunQuery, before: tuple[float, str] | None
) -> list[LibraryRun]:
    """The newest of these owners that the query is for, one more than its limit; older than `before`, a time and id."""
    if query.kind not in (None, "training"):
        return []
    chosen = _models().where(TinkerModel.owner.in_(owners))
    if query.state is not None:
        state = _conditions(database_now(session)).get(query.state)
        if state is None:
            return []
        chosen = chosen.where(state)
    if query.owner is not None:
        chosen = chosen.where(TinkerModel.owner == query.owner)
    name, display = TinkerModel.user_metadata["name"].as_string(), TinkerSession.details["display_name"].as_string()
    for word in query.search.lower().split()[:8]:
        columns = (name, display, TinkerModel.base_model, TinkerModel.owner)
        matches = [func.lower(column).contains(word, autoescape=True) for column in columns]
        chosen = chosen.where(or_(*matches, TinkerModel.id == model_id(word)))
    if before is not None:
        at, last = before
        older = and_(TinkerModel.created_at == at, func.replace(TinkerModel.id, ":", "-") < last)
        chosen = chosen.where(or_(TinkerModel.created_at < at, older))
    chosen = chosen.order_by(TinkerModel.created_at.desc(), TinkerModel.id.desc()).limit(query.limit + 1)
    return [_run(session, data, *row) for row in session.execute(chosen)]


def find_model(session: Session, data: Path, id: str) -> LibraryRun | None:
    """The model whose run has this id."""
    row = session.execute(_models().where(TinkerModel.id == model_id(id))).first()
    return None if row is None else _run(session, data, *row)


def current_models(session: Session, data: Path, recently_s: float) -> list[LibraryRun]:
    """Those that train, and that ended a moment ago."""
    now = database_now(session)
    current = or_(_conditions(now)["running"], TinkerModel.unloaded_at > now - recently_s)
    return [_run(session, data, *row) for row in session.execute(_models().where(current))]


def _models() -> Select[TinkerModel, TinkerSession]:
    return select(TinkerModel, TinkerSession).join(TinkerSession, TinkerSession.id == TinkerModel.session_id)


def _conditions(now: float) -> dict[RunState, ColumnElement[bool]]:
    """By state. A model that waits for its client is stopped: it continues when the client does."""
    since = now - LIVE_S
    return {
        "finished": TinkerModel.unloaded_at.is_not(None),
        "running": and_(TinkerModel.unloaded_at.is_(None), TinkerSession.seen_at > since),
        "stopped": and_(TinkerModel.unloaded_at.is_(None), TinkerSession.seen_at <= since),
    }


def _run(session: Session, data: Path, model: TinkerModel, client: TinkerSession) -> LibraryRun:
    state: RunState = "finished" if model.unloaded_at is not None else "stopped"
    if model.unloaded_at is None and client.seen_at > database_now(session) - LIVE_S:
        state = "running"
    folder = data / FOLDER / "runs" / run_id(model.id)
    directory = folder if (folder / RUN_CONFIG).exists() else None
    last = last_row(folder, METRICS) if directory is not None else {}
    return LibraryRun(
        id=run_id(model.id),
        name=shown_name(model, client),
        kind="training",
        state=state,
        directory=directory,
        config_file=None if directory is None else folder / RUN_CONFIG,
        by_client=True,
        owner=model.owner,
        user=model.owner,
        model=model.base_model,
        reason=SILENT if state == "stopped" else "",
        step=as_whole(last.get("step")) or 0,
        submitted_at=model.created_at,
        started_at=model.created_at,
        ended_at=model.unloaded_at,
        updated_at=model.unloaded_at or model.used_at,
        details=DETAILS,
    )
