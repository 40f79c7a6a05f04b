"""The application: routes joined, errors as JSON, limits on bodies, headers on every answer."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whet import __version__
from whet.hub.api import accounts, environments, packages, pushes
from whet.hub.api.packages import PageCache
from whet.hub.domain.hub import MIB, Hub
from whet.hub.errors import HubError, not_found
from whet.hub.pages import routes as pages

BODY_BYTES = MIB
ROUTERS = (accounts.router, environments.router, pushes.router, packages.router, pages.router)
PAGES = frozenset(route.endpoint for route in pages.router.routes if isinstance(route, APIRoute))
NO_LARGER_BODIES: Mapping[re.Pattern[str], int] = MappingProxyType({})
UPLOAD = re.compile(r"/api/v1/pushes/[^/]*/files/[^/]*")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}


def create_app(
    hub: Hub, first: Sequence[APIRouter] = (), larger: Mapping[re.Pattern[str], int] = NO_LARGER_BODIES
) -> FastAPI:
    """The ASGI application of one hub.

    Args:
        first: routes that go before those of the hub.
        larger: paths whose requests may have more bytes than others.
    """
    app = FastAPI(
        title="whet hub",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        redirect_slashes=False,
    )
    app.state.hub, app.state.pages = hub, PageCache()
    for router in (*first, *ROUTERS):
        app.include_router(router)
    app.add_exception_handler(HubError, hub_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(OSError, _os_error)
    app.add_middleware(RequestGuard, larger={UPLOAD: hub.limits.chunk_bytes, **larger})
    return app


def error_body(error: HubError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": str(error), "details": error.details}}


async def hub_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HubError)
    if getattr(request.scope.get("route"), "endpoint", None) in PAGES:
        return pages.error_page(request, error)
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="whet hub", charset="UTF-8"'
    if error.status == 503:
        headers["Retry-After"] = "2"
    return JSONResponse(error_body(error), status_code=error.status, headers=headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(one["loc"][0] == "path" for one in found):
        return await hub_error(request, not_found("such path"))
    code = "malformed" if any(one["type"] == "json_invalid" for one in found) else "invalid"
    details = [{"field": ".".join(map(str, one["loc"]))[:100], "reason": one["msg"][:300]} for one in found[:10]]
    first = details[0]
    return await hub_error(request, HubError(code, f"{first['field']}: {first['reason']}.", details))


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
    code = codes.get(error.status_code, "malformed")
    message = "there is no such path." if code == "not_found" else f"{error.detail}."
    answer = await hub_error(request, HubError(code, message))
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def _os_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return await hub_error(request, HubError("disk_full", "the hub's disk is full. Free space there."))
    raise error


class RequestGuard:
    """Limits what a request may send, and adds headers to each answer that does not have its own."""

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

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in HEADERS.items() if k.lower().encode() not in names),
                ]
            await send(message)

        if _two_lengths(scope):
            error = HubError("malformed", "a request has one length: Content-Length or Transfer-Encoding.")
            answer = JSONResponse(error_body(error), error.status, headers={"Connection": "close"})
            await answer(scope, receive, with_headers)
            return
        await self._app(scope, limited, with_headers)


def _two_lengths(scope: Scope) -> bool:
    """Whether a proxy before this server may have read the request's body to another end than this server does."""
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names
