"""`/metrics`: figures of the whole server for Prometheus, for its administrators, whose key is a bearer token."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from starlette.responses import Response

from whet.tinker.api.call import Server, Watching, check
from whet.tinker.log import WAITING
from whet.tinker.server import TinkerServer
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
    registry.register(_Computed(server))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Computed(Collector):
    """Counters that the training thread keeps."""

    def __init__(self, server: TinkerServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        for name, what in (
            ("steps", "Optimiser steps"),
            ("sequences", "Sequences trained"),
            ("tokens", "Their tokens"),
        ):
            count = self._server.computed[name]
            yield CounterMetricFamily(f"whet_tinker_{name}", f"{what} since the start", value=count)
