"""Templates, their values, and the headers of a page.

A template gets `root` (path of the application, "" by default), `site`, `user`, `path` (of the page, below the root),
and may call `static("whet.css")` for the URL of a file of static/, with its hash so that it is cached for good.
Values of runs are text: autoescape is always on, and no template may use `safe` on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from whet.dashboard.call import DashboardCall, DataRoute, Site
from whet.dashboard.errors import DashboardError
from whet.dashboard.pages.formats import FILTERS
from whet.display.html import escape

FOLDER = Path(__file__).parents[1]
STATIC = FOLDER / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@lru_cache(maxsize=8)
def _templates(folders: tuple[Path, ...]) -> Environment:
    loader = FileSystemLoader([FOLDER / "templates", *folders])
    templates = Environment(
        loader=loader,
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(FILTERS)
    return templates


def _visible(value: Any) -> Any:
    """Text escaped, with characters replaced that are invisible or reorder it; markup of templates as it is."""
    return escape(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page of a request that a route answers."""
    call: DashboardCall = request.state.dashboard
    return render_page(request, call.site, template, status, {**call.site.values(call.viewer), **values})


class StatusError(Protocol):
    """An error with an HTTP status: a `DashboardError`, or that of another application."""

    @property
    def status(self) -> int: ...


def error_page(request: Request, site: Site, error: StatusError) -> Response:
    return render_page(request, site, "error.html", error.status, {"message": str(error), "status": error.status})


def render_page(request: Request, site: Site, template: str, status: int, values: Mapping[str, Any]) -> Response:
    """A page of any request of the application."""
    root = root_of(request)
    values = {"user": "", **values}
    text = (
        _templates(tuple(site.templates))
        .get_template(template)
        .render(root=root, site=site, path=request.url.path.removeprefix(root), static=_static(root), **values)
    )
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "private, no-store"}
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status, headers=headers)


def query_url(values: Mapping[str, str | None] | Sequence[tuple[str, str | None]]) -> str:
    """`?a=b` of the values that are not empty; `?` alone keeps the path and drops the query."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return "?" + urlencode([(key, value) for key, value in pairs if value])


def wants_drawings(request: Request) -> bool:
    """Whether the answer is shown as it is; a script that refreshes a page draws curves itself."""
    return "x-whet-refresh" not in request.headers


def root_of(request: Request) -> str:
    """The path that the application is under, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _static(root: str) -> Any:
    return lambda name: f"{root}/static/{name}?v={_hash(name)}"


@cache
def _hash(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


class PageRoute(DataRoute):
    """A route whose errors are answered with a page."""

    @staticmethod
    def answer(request: Request, error: DashboardError) -> Response:
        call = getattr(request.state, "dashboard", None)
        return error_page(request, Site() if call is None else call.site, error)


class _StaticFiles(StaticFiles):
    def file_response(self, full_path: Any, stat_result: Any, scope: Scope, status_code: int = 200) -> Response:
        answer = super().file_response(full_path, stat_result, scope, status_code)
        named = scope.get("query_string", b"").startswith(b"v=")
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable" if named else "no-cache"
        return answer


def static_files() -> StaticFiles:
    """The files of static/, to be mounted at /static."""
    return _StaticFiles(directory=STATIC)
