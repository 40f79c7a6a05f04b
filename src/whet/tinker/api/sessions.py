"""Routes by which a client starts, lives and ends."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response
from tinker import types

from whet.hub.errors import HubError
from whet.tinker.api.call import Reading, Server, Training, check, session_owner
from whet.tinker.log import session_of
from whet.tinker.storage.tables import TinkerSession

router = APIRouter(prefix="/api/v1", include_in_schema=False)


@router.get("/healthz")
def health() -> dict[str, str]:
    return {"status": "ok"}


@router.post("/client/config")
def client_config(call: Reading) -> Any:
    """The SDK's own values: no JWTs, bodies uncompressed."""
    check(call)
    return types.ClientConfigResponse().model_dump()


@router.post("/client/dynamic_config")
def client_dynamic_config(call: Reading) -> Any:
    check(call)
    return types.ClientDynamicConfigResponse().model_dump()


@router.get("/get_server_capabilities")
def capabilities(call: Reading, server: Server) -> Any:
    check(call)
    base = server.base
    model = types.SupportedModel(
        model_name=base.name,
        max_context_length=base.limits.context,
        trainable=True,
        sampleable=server.sampling is not None,
    )
    return types.GetServerCapabilitiesResponse(supported_models=[model]).model_dump()


@router.post("/telemetry")
async def telemetry(request: Request) -> dict[str, str]:
    """Accepted and dropped."""
    async for _ in request.stream():
        pass
    return {"status": "accepted"}


@router.post("/create_session")
def create_session(call: Training, server: Server, request: types.CreateSessionRequest) -> Any:
    id, now = secrets.token_hex(8), server.hub.clock()
    with call.write() as opened:
        session, owner = session_owner(opened)
        details = request.model_dump(exclude={"type"})
        session.add(TinkerSession(id=id, owner=owner, details=details, created_at=now, seen_at=now))
    return types.CreateSessionResponse(session_id=id).model_dump()


@router.post("/session_heartbeat")
def heartbeat(call: Training, server: Server, request: types.SessionHeartbeatRequest) -> dict[str, str]:
    with call.write() as opened:
        session, owner = session_owner(opened)
        row = session_of(session, owner, request.session_id)
        if row.ended_at is not None:
            raise HubError("deleted", f"the session {row.id} has ended.")
        row.seen_at = server.hub.clock()
    return {"type": "session_heartbeat"}


class FinishRequest(BaseModel):
    reason: dict[str, Any]
    detail: str | None = None


@router.post("/sessions/{id}/finish")
def finish(call: Training, server: Server, id: str, request: FinishRequest) -> Response:
    """The first reason that a client gives stays."""
    with call.write() as opened:
        session, owner = session_owner(opened)
        row = session_of(session, owner, id)
        if row.ended_at is None:
            row.ended_at = server.hub.clock()
            row.ended = {"type": "client_finished", "reason": request.reason, "detail": request.detail}
    server.work.set()
    return Response(status_code=204)
