"""`/metrics`: figures of the whole server for Prometheus, for its administrators, whose key is a bearer token."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from sqlalchemy import func, select
from starlette.responses import Response

from whet.tinker.api.call import Server, Watching, check
from whet.tinker.log import WAITING
from whet.tinker.storage.tables import TinkerModel, TinkerRequest, TinkerSession

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
def figures(call: Watching, server: Server) -> Response:
    check(call)
    seen = TinkerSession.ended_at.is_(None), TinkerSession.seen_at > server.hub.clock() - server.limits.live_s
    counts = {
        "sessions": ("Sessions heard of lately", select(func.count()).select_from(TinkerSession).where(*seen)),
        "models": (
            "Models that were not unloaded",
            select(func.count()).select_from(TinkerModel).where(TinkerModel.unloaded_at.is_(None)),
        ),
        "requests_waiting": (
            "Requests that wait to be carried out",
            select(func.count()).select_from(TinkerRequest).where(TinkerRequest.state == WAITING),
        ),
    }
    registry = CollectorRegistry()
    with server.hub.database.read() as session:
        for name, (what, query) in counts.items():
            Gauge(f"whet_tinker_{name}", what, registry=registry).set(session.scalar(query) or 0)
    for name, what in (("steps", "Optimiser steps"), ("sequences", "Sequences trained"), ("tokens", "Their tokens")):
        Counter(f"whet_tinker_{name}", f"{what} since the start", registry=registry).inc(server.computed[name])
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
