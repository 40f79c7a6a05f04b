"""One request: its viewer, the library, and how its errors are answered."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BeforeValidator, Field
from starlette.responses import JSONResponse, Response

from whet.dashboard.data.dashboard_data import DashboardData
from whet.dashboard.errors import DashboardError, no_such
from whet.dashboard.library import LibraryRun, Viewer
from whet.errors import ConfigError, MissingExtraError, ModelLoadError, RunError
from whet.records.heads import Filter
from whet.system.files import json_line

ViewerOf = Callable[..., Any]
RunId = Annotated[str, InPath(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Words = Annotated[str, Query(max_length=200)]
Step = Annotated[int, InPath(ge=0, le=2**53)]
Number = Annotated[int, InPath(ge=0, le=2**53)]
EMPTY = BeforeValidator(lambda value: None if value == "" else value)
"""A form without scripts sends fields that are empty."""
Chosen = Annotated[Annotated[str, Field(max_length=200)] | None, EMPTY, Query()]
Flag = Annotated[bool | None, EMPTY, Query()]
Amount = Annotated[Annotated[float, Field(allow_inf_nan=False)] | None, EMPTY, Query()]


@dataclass(frozen=True, slots=True)
class NavItem:
    """A link at the top of each page."""

    label: str
    path: str  # from the root of the application: /runs


@dataclass(frozen=True, slots=True)
class Site:
    """What is around every page: its name, the links at the top, who looks."""

    title: str = "whet"
    nav: Sequence[NavItem] = (
        NavItem("Runs", "/runs"),
        NavItem("Evaluations", "/evaluations"),
        NavItem("Compare", "/compare"),
    )
    data: str = "/data"
    """Path of the routes that scripts of pages get data from."""
    templates: Sequence[Path] = ()
    """Folders of further templates, which may extend `base.html`."""
    values: Callable[[Viewer], Mapping[str, Any]] = field(default=lambda viewer: {})
    """Further values of each page: `user`, say, which is the name of the viewer, "" by default."""
    login: str = ""
    """Path of the page to log in, where there are users."""
    cookie: str = ""
    """The cookie of their sessions."""
    programs: tuple[str, ...] = ("/api/v1/", "/data/")
    """Beginnings of the paths that answer errors as JSON; others answer with a page."""


@dataclass(frozen=True, slots=True)
class DashboardCall:
    """What a route needs of its request."""

    data: DashboardData
    viewer: Viewer
    site: Site

    def run(self, id: str) -> LibraryRun:
        """A run that the viewer may see. Raises `DashboardError`."""
        return self.data.library.run(self.viewer, id)


def filter_of(
    environment: Chosen = None,
    part: Chosen = None,
    step: Annotated[Annotated[int, Field(ge=0, le=2**53)] | None, EMPTY, Query()] = None,
    failed: Flag = None,
    error: Chosen = None,
    stop_condition: Chosen = None,
    candidate: Chosen = None,
    truncated: Flag = None,
    reward_from: Amount = None,
    reward_to: Amount = None,
    group: Annotated[str, Query(pattern=r"^(-?\d{1,19})?$")] = "",
) -> Filter:
    """The filter of a list of rollouts, from a query."""
    key = int(group) if group else None
    if key is not None and not -(2**63) <= key < 2**63:
        raise DashboardError("invalid", "group: it is the key of no group.")
    narrow = (environment, part, failed, error, stop_condition, candidate, truncated, reward_from, reward_to, key)
    return Filter(*narrow, step=step)


ByFilter = Annotated[Filter, Depends(filter_of)]


def _bound(request: Request) -> DashboardCall:
    call = request.state.dashboard
    assert isinstance(call, DashboardCall)
    return call


Call = Annotated[DashboardCall, Depends(_bound)]


class DataRoute(APIRoute):
    """A route whose errors are answered as JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                failure = invalid(error)
            except DashboardError as error:
                failure = error
            except (RunError, ConfigError, ModelLoadError) as error:
                failure = DashboardError("unreadable", str(error))
            except MissingExtraError as error:
                failure = DashboardError("missing_extra", str(error))
            except FileNotFoundError:
                failure = no_such("file of this run")
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    failure = DashboardError("disk_full", "the server's disk is full. Free space there.")
                else:
                    failure = DashboardError("unreadable", f"{error.filename or 'a file'}: {error.strerror or error}.")
            return self.answer(request, failure)

        return answered

    @staticmethod
    def answer(request: Request, error: DashboardError) -> Response:
        return error_answer(error)


MORE_HEADERS = {
    401: {"WWW-Authenticate": 'Basic realm="whet", charset="UTF-8"'},
    503: {"Retry-After": "2"},
}


def error_answer(error: DashboardError) -> Response:
    """An error for a program."""
    headers = {"Cache-Control": "no-store", **MORE_HEADERS.get(error.status, {})}
    return JSONResponse(error.body, status_code=error.status, headers=headers)


def json_answer(value: Any) -> Response:
    """An answer in JSON; numbers that are not finite are null."""
    return Response(json_line(value), media_type="application/json", headers={"Cache-Control": "no-store"})


def invalid(error: RequestValidationError) -> DashboardError:
    """Wrong fields are named; a path that cannot be one is a path that does not exist."""
    errors = error.errors()
    if any(one["loc"][0] == "path" for one in errors):
        return no_such("path")
    code = "malformed" if any(one["type"] == "json_invalid" for one in errors) else "invalid"
    details = [
        {"field": ".".join(map(str, one["loc"][1:] or one["loc"]))[:100], "reason": one["msg"][:300]}
        for one in errors[:10]
    ]
    return DashboardError(code, f"{details[0]['field']}: {details[0]['reason']}.", details)
