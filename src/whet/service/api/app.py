"""The service's application: the hub's, the service's own routes, and the dashboard's.

Routes of data are there twice: below `/api/v1` for programs with a token, and below `/data` for scripts of pages, which
have the page's session (`whet.hub.api.call.call_of` tells them apart).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from whet.dashboard.app import data_router, page_router
from whet.dashboard.call import NavItem, Site
from whet.dashboard.data.dashboard_data import DashboardData
from whet.dashboard.errors import DashboardError
from whet.dashboard.pages.rendering import PageRoute, error_page, root_of, static_files
from whet.hub import policy
from whet.hub.api.app import create_app, http_error, hub_error
from whet.hub.api.call import COOKIE, OF_PAGES, action, below_root, call_for
from whet.hub.errors import HubError
from whet.service.api import deployments, owners, runs, webhooks
from whet.service.domain.access import SEE, Viewer, viewer_of
from whet.service.pages import PAGES
from whet.service.pages.look import look
from whet.service.service import FILE_BYTES, Service

API, PAGE_DATA = "/api/v1", "/data"
BLOB = re.compile(r"(/api/v1|/data)/blobs/[^/]*")
TEMPLATES = Path(__file__).parents[1] / "pages" / "templates"
ROUTERS = (runs.router, owners.router, deployments.router, webhooks.router)
NAV = (
    NavItem("Runs", "/runs"),
    NavItem("Evaluations", "/evaluations"),
    NavItem("Compare", "/compare"),
    NavItem("Environments", "/environments"),
    NavItem("Deployments", "/deployments"),
    NavItem("Settings", "/tokens"),
)
home = APIRouter(include_in_schema=False)


@home.get("/")
@action(policy.SERVICE)
def to_runs(request: Request) -> Response:
    return RedirectResponse(f"{root_of(request)}/runs", status_code=303)


def create_service_app(service: Service) -> FastAPI:
    """The ASGI application of one service."""
    app = create_app(service.hub, first=(home,), larger={BLOB: FILE_BYTES + 1})
    data = DashboardData(service.library)
    site = Site("whet", NAV, PAGE_DATA, templates=(TEMPLATES,), values=_values)
    app.state.look = look
    app.state.service, app.state.site, app.state.dashboard_data = service, site, data
    for prefix, viewer in ((API, _viewer_of_token), (PAGE_DATA, _viewer_of_session)):
        for router in ROUTERS:
            app.include_router(router, prefix=prefix, include_in_schema=prefix == API)
        app.include_router(data_router(data, viewer), prefix=prefix, include_in_schema=prefix == API)
    app.include_router(page_router(data, _viewer_of_session, site, PAGES))
    app.mount("/static", static_files())
    app.add_exception_handler(HubError, _error)
    app.add_exception_handler(HTTPException, _no_route)
    return app


def _values(viewer: Viewer) -> dict[str, Any]:
    """Of each page."""
    return {"user": viewer.name, "is_site_admin": viewer.is_admin}


def _viewer_of_token(request: Request) -> Viewer:
    return _viewer(request, page=False)


def _viewer_of_session(request: Request) -> Viewer:
    return _viewer(request, page=True)


def _viewer(request: Request, *, page: bool) -> Viewer:
    with call_for(request, SEE, page=page).read() as (session, caller):
        return viewer_of(session, caller)


async def _no_route(request: Request, error: Exception) -> Response:
    """A path without a route: a page for a browser."""
    assert isinstance(error, HTTPException)
    path = below_root(request)
    if error.status_code != 404 or path.startswith((f"{API}/", OF_PAGES, "/index/", "/files/")):
        return await http_error(request, error)
    return error_page(request, request.app.state.site, DashboardError("not_found", "there is no such page."))


async def _error(request: Request, error: Exception) -> Response:
    """A page without a session leads to the login, and back from there; other errors are the hub's."""
    assert isinstance(error, HubError)
    if not isinstance(request.scope.get("route"), PageRoute):
        return await hub_error(request, error)
    if error.code != "unauthenticated":
        return error_page(request, request.app.state.site, error)
    target = below_root(request) + (f"?{request.url.query}" if request.url.query else "")
    answer = RedirectResponse(f"{root_of(request)}/login?{urlencode({'next': target})}", status_code=303)
    answer.delete_cookie(COOKIE)
    return answer
