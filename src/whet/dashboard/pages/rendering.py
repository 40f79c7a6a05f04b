"""Templates, their values, and the headers of a page.

A template gets `root` (path of the application, "" by default), `site`, `user`, `path` (of the page, below the root),
and may call `static("whet.css")` for the URL of a file of static/, with its hash so that it is cached for good.
Values of runs are text: autoescape is always on, and no template may use `safe` on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from whet.dashboard.call import DashboardCall, DataRoute, Site
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun
from whet.display.page.rendering import STATIC, templates

FOLDER = Path(__file__).parents[1] / "templates"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page of a request that a route answers."""
    call: DashboardCall = request.state.dashboard
    return render_page(request, call.site, template, status, {**call.site.values(call.viewer), **values})


def error_page(request: Request, error: DashboardError) -> Response:
    """An error of a page. Where a session has ended, the way to a new one, and back from there."""
    site: Site = request.app.state.site
    if error.code != "unauthenticated" or not site.login:
        user = None if site.cookie in request.cookies else ""  # whose session it is has not been looked up
        values = {"message": str(error), "status": error.status, "user": user}
        return render_page(request, site, "error.html", error.status, values)
    target = f"?{urlencode({'next': address_of(request)})}" if request.method == "GET" else ""
    answer = RedirectResponse(f"{root_of(request)}{site.login}{target}", status_code=303)
    answer.delete_cookie(site.cookie)
    return answer


def render_page(request: Request, site: Site, template: str, status: int, values: Mapping[str, Any]) -> Response:
    """A page of any request of the application."""
    root = root_of(request)
    values = {"user": "", **values}
    text = (
        templates((FOLDER, *site.templates))
        .get_template(template)
        .render(root=root, site=site, path=request.url.path.removeprefix(root), static=_static(root), **values)
    )
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "private, no-store"}
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status, headers=headers)


def address(path: str, query: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> str:
    """A URL; what is None or "" is not in it. Of no path, `?` alone keeps the page's and drops its query."""
    pairs = query.items() if isinstance(query, Mapping) else query
    written = urlencode([(name, value) for name, value in pairs if value not in (None, "")])
    return f"{path}?{written}" if written or not path else path


def wants_drawings(request: Request) -> bool:
    """Whether the answer is shown as it is; a script that refreshes a page draws curves itself."""
    return "x-whet-refresh" not in request.headers


def root_of(request: Request) -> str:
    """The path that the application is under, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def run_path(request: Request, run: LibraryRun) -> str:
    """The path that the pages of a run are below."""
    return f"{root_of(request)}/runs/{run.id}"


def address_of(request: Request) -> str:
    """The path below the application's, with its query."""
    return request.url.path.removeprefix(root_of(request)) + (f"?{request.url.query}" if request.url.query else "")


def _static(root: str) -> Any:
    return lambda name: f"{root}/static/{name}?v={_hash(name)}"


@cache
def _hash(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


class PageRoute(DataRoute):
    """A route whose errors are answered with a page."""

    @staticmethod
    def answer(request: Request, error: DashboardError) -> Response:
        return error_page(request, error)


class _StaticFiles(StaticFiles):
    def file_response(self, full_path: Any, stat_result: Any, scope: Scope, status_code: int = 200) -> Response:
        answer = super().file_response(full_path, stat_result, scope, status_code)
        named = scope.get("query_string", b"").startswith(b"v=")
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable" if named else "no-cache"
        return answer


def static_files() -> StaticFiles:
    """The files of static/, to be mounted at /static."""
    return _StaticFiles(directory=STATIC)
