"""The application: the hub's, whose users and tokens it has, with the routes of the training API before its own."""

from __future__ import annotations

import re

from fastapi import FastAPI, Request
from sqlalchemy.exc import DataError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from whet.dashboard.call import error_answer
from whet.hub.api.app import BODY_BYTES
from whet.hub.api.app import create_app as create_hub_app
from whet.hub.errors import HubError
from whet.tinker.api import figures, futures, runs, sampling, sessions, states, training
from whet.tinker.api.call import TRAIN, call_to, check
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
HELD = re.compile(r"/api/v1/(forward_backward|asample)")
LARGER = re.compile(r"/api/v1/(forward_backward|asample|telemetry)|/(oai|anthropic)/api/.*")


def create_tinker_app(server: TinkerServer, *, is_hub: bool = True) -> FastAPI:
    """The ASGI application of one server; without `is_hub` another process has the hub's own routes."""
    app = create_hub_app(server.hub, ROUTERS, own_routes=is_hub, larger={LARGER: server.limits.body_bytes})
    app.state.tinker = server
    if server.sampling is not None:
        gateway = inference_gateway(server, server.sampling)
        app.router.routes[:0] = [Mount(path, gateway.app) for path in MOUNTS]
    app.add_middleware(KeyFirst)
    for kind in (DataError, OverflowError, UnicodeEncodeError):
        app.add_exception_handler(kind, _not_storable)
    return app


async def _not_storable(request: Request, error: Exception) -> Response:
    return error_answer(HubError("invalid", "the request has a text or a number that the database cannot store."))


class KeyFirst:
    """Large bodies wait in memory: one is read of a client that has a key, and refused of others before."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and HELD.fullmatch(scope["path"]):
            request = Request(scope)
            length = request.headers.get("content-length", "")
            if not length.isdecimal() or int(length) > BODY_BYTES:
                try:
                    await run_in_threadpool(check, call_to(TRAIN, request))
                except HubError as error:
                    app = error_answer(error)
                    app.headers["Connection"] = "close"
        await app(scope, receive, send)
