"""Rows as the SDK's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from whet.tinker.states import SEGMENTS
from whet.tinker.storage.tables import TinkerModel, TinkerSession, TinkerState


def when(seconds: float | None) -> str | None:
    """A time as text; None for none."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def metadata(values: Mapping[str, object] | None) -> dict[str, str] | None:
    """What a client attached, as text."""
    return None if values is None else {str(key): str(value) for key, value in values.items()}


def state_answer(row: TinkerState) -> dict[str, Any]:
    """A `Checkpoint` of the SDK."""
    return {
        "checkpoint_id": f"{SEGMENTS[row.kind]}/{row.path.rpartition('/')[2]}",
        "checkpoint_type": row.kind,
        "time": when(row.created_at),
        "tinker_path": row.path,
        "size_bytes": row.size,
        "public": row.public,
        "user_metadata": metadata(row.user_metadata),
        "expires_at": when(row.expires_at),
    }


def run_answer(session: Session, row: TinkerModel, now: float) -> dict[str, Any]:
    """A `TrainingRun` of the SDK."""
    last: dict[str, Any] = {}
    for kind in ("training", "sampler"):
        query = kept(now).where(TinkerState.model_id == row.id, TinkerState.kind == kind)
        state = session.scalar(query.order_by(TinkerState.created_at.desc()).limit(1))
        last[kind] = state and state_answer(state)
    return {
        "training_run_id": row.id,
        "base_model": row.base_model,
        "model_owner": row.owner,
        "is_lora": True,
        "lora_rank": row.spec["rank"],
        "last_request_time": when(row.used_at),
        "last_checkpoint": last["training"],
        "last_sampler_checkpoint": last["sampler"],
        "user_metadata": metadata(row.user_metadata),
    }


def kept(now: float) -> Select[Any]:
    """The states that have not expired."""
    return select(TinkerState).where((TinkerState.expires_at.is_(None)) | (TinkerState.expires_at > now))


def session_answer(session: Session, row: TinkerSession, now: float) -> dict[str, Any]:
    """A `SessionSummary` of the SDK."""
    query = kept(now).join(TinkerModel, TinkerModel.id == TinkerState.model_id)
    query = query.where(TinkerModel.session_id == row.id)
    sizes = list(session.scalars(query.with_only_columns(TinkerState.size)))
    return {
        "session_id": row.id,
        "created_at": when(row.created_at),
        "owner": row.owner,
        "project_id": row.details.get("project_id") or "",
        "status": row.ended or {"type": "active"},
        "checkpoints_count": len(sizes),
        "checkpoint_storage_bytes": sum(sizes),
        "display_name": row.details.get("display_name"),
        "user_metadata": metadata(row.details.get("user_metadata")),
    }


class ListPart:
    """Which part of a list a request is for."""

    def __init__(
        self, limit: Annotated[int, Query(ge=0, le=1000)] = 20, offset: Annotated[int, Query(ge=0, le=2**31)] = 0
    ) -> None:
        self.limit, self.offset = limit, offset

    def of(self, session: Session, query: Select[Any]) -> tuple[Sequence[Any], dict[str, int]]:
        """The rows, and the SDK's `Cursor`."""
        total = int(session.scalar(select(func.count()).select_from(query.order_by(None).subquery())) or 0)
        rows = session.scalars(query.limit(self.limit).offset(self.offset)).all()
        return rows, {"offset": self.offset, "limit": self.limit, "total_count": total}


Part = Annotated[ListPart, Depends(ListPart)]
