"""The application: routes joined, errors as JSON, limits on bodies, headers on every answer."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whet.dashboard.app import base_app
from whet.dashboard.call import Site, error_answer, invalid
from whet.hub.api import accounts, environments, packages, pushes
from whet.hub.api.packages import PageCache
from whet.hub.domain.hub import MIB, Hub
from whet.hub.errors import HubError
from whet.hub.pages import routes as pages

BODY_BYTES = MIB
ROUTERS = (accounts.router, environments.router, pushes.router, packages.router, pages.router)
NO_LARGER_BODIES: Mapping[re.Pattern[str], int] = MappingProxyType({})
UPLOAD = re.compile(r"/api/v1/pushes/[^/]*/files/[^/]*")


def create_app(
    hub: Hub,
    first: Sequence[APIRouter] = (),
    larger: Mapping[re.Pattern[str], int] = NO_LARGER_BODIES,
    site: Site = pages.SITE,
    more_values: pages.MoreValues = pages.own_values,
    own_routes: bool = True,
) -> FastAPI:
    """The ASGI application of one hub.

    Args:
        first: routes that go before those of the hub.
        larger: paths whose requests may have more bytes than others.
        site: what is around every page.
        more_values: further values of the hub's pages.
        own_routes: False where another process has this hub, and `first` are all routes.
    """
    guard = Middleware(RequestGuard, larger={UPLOAD: hub.limits.chunk_bytes, **larger})
    app = base_app(site.title, site, middleware=[guard])
    app.state.hub, app.state.pages, app.state.more_values = hub, PageCache(), more_values
    for router in (*first, *(ROUTERS if own_routes else ())):
        app.router.routes.extend(router.routes)
    for kind in (HubError, RequestValidationError, OSError):
        app.add_exception_handler(kind, _failed)
    return app


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HubError):
        return error_answer(error)
    if isinstance(error, RequestValidationError):
        return error_answer(invalid(error))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error_answer(HubError("disk_full", "the hub's disk is full. Free space there."))
    raise error


class RequestGuard:
    """Limits what a request may send."""

    def __init__(self, app: ASGIApp, larger: Mapping[re.Pattern[str], int]) -> None:
        self._app = app
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = next((most for path, most in self._larger.items() if path.fullmatch(scope["path"])), BODY_BYTES)
        too_large = HTTPException(413, f"the body is larger than {left} bytes")

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise too_large
            return message

        if _two_lengths(scope):
            error = HubError("malformed", "a request has one length: Content-Length or Transfer-Encoding.")
            answer = error_answer(error)
            answer.headers["Connection"] = "close"
            await answer(scope, receive, send)
            return
        await self._app(scope, limited, send)


def _two_lengths(scope: Scope) -> bool:
    """Whether a proxy before this server may have read the request's body to another end than this server does."""
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names
