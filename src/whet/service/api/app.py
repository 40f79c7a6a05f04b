"""The service's application: the hub's, the service's own routes, and the dashboard's.

Routes of data are there twice: below `/api/v1` for programs with a token, and below `/data` for scripts of pages, which
have the page's session (`whet.hub.api.call.call_of` tells them apart).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request

from whet.dashboard.app import dashboard_routes, to_runs
from whet.dashboard.call import NavItem
from whet.dashboard.data.dashboard_data import DashboardData
from whet.dashboard.library import LibraryRun, RunQuery
from whet.hub import policy
from whet.hub.api.app import create_app
from whet.hub.api.call import action, call_for
from whet.hub.domain.access import Caller
from whet.hub.pages.routes import SITE
from whet.service.api import deployments, owners, runs, webhooks
from whet.service.domain.access import SEE, RequestUser, viewer_of
from whet.service.pages import PAGES
from whet.service.service import FILE_BYTES, Service, service_of

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
MOST_EVALUATIONS = 10
home = APIRouter(include_in_schema=False)
home.add_api_route("/", action(policy.SERVICE)(to_runs))


def create_service_app(service: Service) -> FastAPI:
    """The ASGI application of one service."""
    site = replace(SITE, title="whet", nav=NAV, templates=(*SITE.templates, TEMPLATES), values=_values)
    app = create_app(service.hub, (home,), {BLOB: FILE_BYTES + 1}, site, _more_values)
    app.state.service, app.state.dashboard_data = service, DashboardData(service.library)
    app.router.routes.extend(SERVICE_ROUTES)
    return app


def _values(viewer: RequestUser) -> dict[str, Any]:
    """Of each page."""
    return {"user": viewer.name, "is_site_admin": viewer.is_admin}


def _more_values(request: Request, template: str, caller: Caller, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the service adds to a page of the hub: the user, and an environment's evaluations."""
    with service_of(request).hub.database.read() as session:
        viewer = viewer_of(session, Caller(SEE, caller.token))
    known = _values(viewer)
    if template == "environment.html":
        known["evaluations"] = _evaluations(request, viewer, values["environment"].id)
    return known


def _evaluations(request: Request, viewer: RequestUser, environment: str) -> list[LibraryRun]:
    """The newest evaluations of any version of an environment that the viewer may see."""
    name = environment.partition("/")[2]
    query = RunQuery(kind="evaluation", search=name, limit=200)
    runs = service_of(request).library.runs(viewer, query).items
    of_it = [run for run in runs if any(one.startswith(f"{environment}@") for one in run.details["pinned"])]
    return of_it[:MOST_EVALUATIONS]


def _viewer_of_token(request: Request) -> RequestUser:
    return _viewer(request, page=False)


def _viewer_of_session(request: Request) -> RequestUser:
    return _viewer(request, page=True)


def _viewer(request: Request, *, page: bool) -> RequestUser:
    with call_for(request, SEE, page=page).read() as (session, caller):
        return viewer_of(session, caller)


SERVICE_ROUTES = dashboard_routes(_viewer_of_token, _viewer_of_session, ROUTERS, PAGES)
"""Those that a hub does not have."""
