"""The application: the hub's, whose users and tokens it has, with the routes of the training API before its own."""

from __future__ import annotations

import re

from fastapi import FastAPI, Request
from sqlalchemy.exc import DataError
from starlette.responses import Response
from starlette.routing import Mount

from whet.dashboard.call import error_answer
from whet.hub.api.app import create_app as create_hub_app
from whet.hub.errors import HubError
from whet.tinker.api import figures, futures, runs, sampling, sessions, states, training
from whet.tinker.api.inference import MOUNTS, inference_gateway
from whet.tinker.server import TinkerServer

ROUTERS = (
    sessions.router,
    training.router,
    sampling.router,
    futures.router,
    runs.router,
    states.router,
    figures.router,
)
LARGER = re.compile(r"/api/v1/(forward_backward|asample|telemetry)|/(oai|anthropic)/api/.*")


def create_tinker_app(server: TinkerServer) -> FastAPI:
    """The ASGI application of one server."""
    app = create_hub_app(server.hub, first=ROUTERS, larger={LARGER: server.limits.body_bytes})
    app.state.tinker = server
    if server.sampling is not None:
        gateway = inference_gateway(server, server.sampling)
        app.router.routes[:0] = [Mount(path, gateway.app) for path in MOUNTS]
    for kind in (DataError, OverflowError, UnicodeEncodeError):
        app.add_exception_handler(kind, _not_storable)
    return app


async def _not_storable(request: Request, error: Exception) -> Response:
    return error_answer(HubError("invalid", "the request has a text or a number that the database cannot store."))
