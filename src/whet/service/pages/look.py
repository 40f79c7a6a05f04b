"""The hub's pages in the look of the dashboard: the same routes, other templates (`templates/hub/`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from whet.dashboard.library import LibraryRun, RunQuery
from whet.dashboard.pages.rendering import render_page
from whet.hub.domain.access import Caller
from whet.service.domain.access import SEE, Viewer, viewer_of
from whet.service.service import service_of

MOST_EVALUATIONS = 10


def look(request: Request, template: str, caller: Caller | None, values: Mapping[str, Any], status: int) -> Response:
    """A page of the hub."""
    viewer = _viewer(request, caller)
    known = request.app.state.site.values(viewer) if viewer is not None else {}
    more: dict[str, Any] = {}
    if template == "environment.html":
        more["evaluations"] = _evaluations(request, viewer, values["environment"]["id"]) if viewer is not None else []
    return render_page(request, request.app.state.site, f"hub/{template}", status, {**known, **values, **more})


def _viewer(request: Request, caller: Caller | None) -> Viewer | None:
    if caller is None or caller.token is None:
        return None
    with service_of(request).hub.database.read() as session:
        return viewer_of(session, Caller(SEE, caller.token))


def _evaluations(request: Request, viewer: Viewer, environment: str) -> list[LibraryRun]:
    """The newest evaluations of any version of an environment that the viewer may see."""
    name = environment.partition("/")[2]
    query = RunQuery(kind="evaluation", search=name, limit=200)
    runs = service_of(request).library.runs(viewer, query).items
    of_it = [run for run in runs if any(one.startswith(f"{environment}@") for one in run.details["pinned"])]
    return of_it[:MOST_EVALUATIONS]
