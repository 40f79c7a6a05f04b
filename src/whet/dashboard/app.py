"""The dashboard as an application: routes and pages of a library, errors as JSON or a page, headers on every answer.

    app.state.dashboard_data, app.state.site = DashboardData(library), Site("my runs")
    app.router.routes.extend(dashboard_routes(viewer_of_token, viewer_of_session))
    app.mount("/static", static_files())

A viewer is found by a dependency: a function of the request that returns the viewer, or raises what the application
turns into an answer. The routes turn their own errors into answers, so that any application can include them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whet import __version__
from whet.dashboard import routes
from whet.dashboard.call import DashboardCall, Site, ViewerOf, error_answer
from whet.dashboard.data.dashboard_data import DashboardData
from whet.dashboard.errors import DashboardError
from whet.dashboard.pages import PAGE_ROUTERS
from whet.dashboard.pages.rendering import address_of, error_page, root_of, static_files

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
"""Of answers that do not have their own: data is never a document."""
API, PAGE_DATA = "/api/v1", "/data"


def dashboard_routes(
    of_token: ViewerOf, of_session: ViewerOf, data: Sequence[APIRouter] = (), pages: Sequence[APIRouter] = ()
) -> Sequence[BaseRoute]:
    """The routes of the runs' data, below API for programs and below PAGE_DATA for pages, and the pages; further ones.

    Any number of applications may have the same ones. FastAPI works out a route, which takes a millisecond, once for
    each time that its router is included.
    """
    own, of_pages = APIRouter(), [Depends(_binding(of_session))]
    for prefix, bound in ((API, [Depends(_binding(of_token))]), (PAGE_DATA, of_pages)):
        for router in data:
            own.include_router(router, prefix=prefix, include_in_schema=prefix == API)
        own.include_router(routes.router, prefix=prefix, dependencies=bound, include_in_schema=prefix == API)
    for router in (*PAGE_ROUTERS, *pages):
        own.include_router(router, dependencies=of_pages, include_in_schema=False)
    return own.routes


def _binding(viewer_of: ViewerOf) -> Callable[..., None]:
    def bind(request: Request, viewer: Any = Depends(viewer_of)) -> None:  # noqa: B008
        request.state.dashboard = DashboardCall(request.app.state.dashboard_data, viewer, request.app.state.site)

    return bind


def base_app(title: str, site: Site, **more: Any) -> FastAPI:
    """What the dashboard, the hub and the service have in common: static files, error pages, headers."""
    app = FastAPI(
        title=title,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        redirect_slashes=False,
        **more,
    )
    app.state.site = site
    app.mount("/static", static_files())
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _fault)
    app.add_middleware(SecurityHeaders)
    return app


def create_app(data: DashboardData, site: Site) -> FastAPI:
    """The dashboard by itself: without users, everything in the library for each request."""
    app = base_app("whet dashboard", site)
    app.state.dashboard_data = data
    app.router.routes.extend(ROUTES)
    app.add_api_route("/", to_runs, include_in_schema=False)
    return app


def _everyone() -> None:
    """The one viewer of a dashboard without users."""


ROUTES = dashboard_routes(_everyone, _everyone)


def to_runs(request: Request) -> Response:
    return RedirectResponse(f"{root_of(request)}/runs", status_code=303)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
    code = codes.get(error.status_code, "malformed")
    failure = DashboardError(code, "there is no such path." if code == "not_found" else f"{error.detail}.")
    answer = answer_of(request, failure)
    answer.headers.update(error.headers or {})
    return answer


async def _fault(request: Request, _: Exception) -> Response:
    """A fault of the server's own, whose traceback is in its log. It is answered outside of all middleware."""
    message = "the server failed to answer this, by a fault of its own; its log says where."
    answer = answer_of(request, DashboardError("internal_error", message))
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


def answer_of(request: Request, error: DashboardError) -> Response:
    """An error of a request that no route answered: JSON for programs, else a page."""
    for_programs = address_of(request).startswith(request.app.state.site.programs)
    if for_programs or request.method not in ("GET", "HEAD") or request.headers.get("accept") == "application/json":
        return error_answer(error)
    return error_page(request, error)


class SecurityHeaders:
    """Adds `HEADERS` to each answer that does not have its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in HEADERS.items() if k.lower().encode() not in names),
                ]
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
