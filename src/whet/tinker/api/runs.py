"""Routes that list sessions and training runs, as the SDK's RestClient reads them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import select
from starlette.responses import Response
from tinker import types

from whet.hub.errors import HubError, not_found
from whet.tinker.api.answers import Part, metadata, run_answer, session_answer, when
from whet.tinker.api.call import Reading, Server, Training, session_owner
from whet.tinker.log import model_of, session_of
from whet.tinker.storage.tables import TinkerModel, TinkerSampler, TinkerSession

router = APIRouter(prefix="/api/v1", include_in_schema=False)


@router.get("/training_runs")
def training_runs(call: Reading, server: Server, part: Part, project_id: str | None = None) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        query = select(TinkerModel).where(TinkerModel.owner == owner).order_by(TinkerModel.created_at.desc())
        if project_id is not None:
            query = query.join(TinkerSession, TinkerSession.id == TinkerModel.session_id)
            query = query.where(TinkerSession.details["project_id"].as_string() == project_id)
        rows, cursor = part.of(session, query)
        return {
            "training_runs": [run_answer(session, row, server.hub.clock()) for row in rows],
            "cursor": cursor,
        }


@router.get("/training_runs/{id}")
def training_run(call: Reading, server: Server, id: str) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        return run_answer(session, model_of(session, owner, id), server.hub.clock())


@router.get("/sessions")
def list_sessions(call: Reading, part: Part) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        query = select(TinkerSession).where(TinkerSession.owner == owner).order_by(TinkerSession.created_at.desc())
        return {"sessions": [row.id for row in part.of(session, query)[0]]}


@router.get("/sessions/{id}")
def get_session(call: Reading, id: str) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        row = session_of(session, owner, id)
        runs = select(TinkerModel.id).where(TinkerModel.session_id == row.id).order_by(TinkerModel.created_at)
        samplers = select(TinkerSampler.id).where(TinkerSampler.session_id == row.id)
        return {
            "training_run_ids": list(session.scalars(runs)),
            "sampler_ids": list(session.scalars(samplers.order_by(TinkerSampler.created_at))),
            "user_metadata": metadata(row.details.get("user_metadata")),
            "display_name": row.details.get("display_name"),
        }


class ProjectRequest(BaseModel):
    project_id: str


@router.put("/sessions/{id}/project")
def assign_project(call: Training, id: str, request: ProjectRequest) -> Response:
    """Projects are names: a session has one, and lists can be of one."""
    with call.write() as opened:
        session, owner = session_owner(opened)
        row = session_of(session, owner, id)
        row.details = {**row.details, "project_id": request.project_id}
    return Response(status_code=204)


@router.post("/sessions/search")
def search_sessions(call: Reading, server: Server, request: types.SessionSearchRequest) -> dict[str, Any]:
    """The user's own sessions, the newest first."""
    with call.read() as opened:
        session, owner = session_owner(opened)
        if request.owner.type == "user" and request.owner.owner_urns != [owner]:
            raise HubError("invalid", "owner: a search here is for the sessions of the key's own user.")
        query = select(TinkerSession).where(TinkerSession.owner == owner)
        query = query.order_by(TinkerSession.created_at.desc(), TinkerSession.id.desc())
        rows = [row for row in session.scalars(query) if _matches(row, request)]
        if request.cursor is not None:
            last = when(request.cursor.last_created_at.timestamp()), request.cursor.last_session_id
            rows = [row for row in rows if (when(row.created_at), row.id) < last]
        page = rows[: request.limit]
        following = None
        if len(rows) > len(page):
            following = {"last_created_at": when(page[-1].created_at), "last_session_id": page[-1].id}
        sessions = [session_answer(session, row, server.hub.clock()) for row in page]
    return {"sessions": sessions, "next_cursor": following}


def _matches(row: TinkerSession, request: types.SessionSearchRequest) -> bool:
    details = row.details
    if request.project_ids is not None and details.get("project_id") not in request.project_ids:
        return False
    attached = metadata(details.get("user_metadata")) or {}
    if any(attached.get(key) != value for key, value in request.user_metadata.items()):
        return False
    if request.statuses is not None and not any(_has_status(row, status) for status in request.statuses):
        return False
    if request.session_id is None and request.display_name is None:
        return True
    name = (details.get("display_name") or "").lower()
    named = request.display_name is not None and all(word in name for word in request.display_name.lower().split())
    return named or row.id == request.session_id


def _has_status(row: TinkerSession, status: Any) -> bool:
    ended = row.ended or {"type": "active"}
    if ended["type"] != status.type:
        return False
    reasons = getattr(status, "reasons", None)
    return reasons is None or ended["reason"].get("type") in reasons


@router.get("/samplers/{id}")
def get_sampler(call: Reading, id: str) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        row = session.get(TinkerSampler, id)
        if row is None or row.owner != owner:
            raise not_found(f"sampler {id[:100]}")
        return {"sampler_id": row.id, "base_model": row.base_model, "model_path": row.model_path}


REFUSED = {
    "/audit": "an audit log of training; the hub's own is read with `whet hub audit list`",
    "/billing/usage/events": "billing",
    "/sessions/{id}/trace_export": "traces of sessions",
    "/auth/token": "JSON web tokens; send the key itself",
    "/create_custom_loss": "losses that run on the server; the SDK runs custom losses in the client",
}
"""What the SDK may call and this server does not have."""


def _refusing(what: str) -> Any:
    def refuse() -> None:
        raise HubError("not_found", f"this server has no {what}.")

    return refuse


for _path, _what in REFUSED.items():
    router.add_api_route(_path, _refusing(_what), methods=["GET", "POST"])
