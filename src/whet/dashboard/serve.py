"""`whet dashboard`: the pages of some folders, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from whet.config import Option, StrictModel
from whet.errors import ConfigError
from whet.gateway.guard import GatewayGuard, Hosts
from whet.gateway.serve import address_of, answer, listen

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

    from whet.gateway.wire import RequestError

DEFAULT_FOLDERS = (Path("runs"), Path("outputs"))


class DashboardConfig(StrictModel):
    """`whet dashboard`. Each description is the option's `--help`."""

    folders: tuple[Path, ...] = Field(
        (), description="Folders with runs and evaluations; runs/ and outputs/ if absent."
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on. There are no users: keep loopback.")
    allow_host: Annotated[tuple[str, ...], Option(metavar="NAME")] = Field(
        (), description="A further host name that requests may be for; '*' allows any."
    )
    port: Annotated[int, Option("-p")] = Field(8095, ge=0, le=65535, description="Port; 0 takes a free one.")


def folders_of(config: DashboardConfig) -> list[Path]:
    """Raises `ConfigError` for a folder that is named and not there."""
    for folder in config.folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder. Name folders that hold runs or evaluations.")
    return list(config.folders or DEFAULT_FOLDERS)


def serve(config: DashboardConfig, on_ready: Callable[[str], None]) -> None:
    """Serve until interrupted. `on_ready` is called with the address, once requests are answered.

    Raises `ConfigError` for a folder that is not there, and where the port is taken.
    """
    from whet.dashboard.app import create_app
    from whet.dashboard.call import Site
    from whet.dashboard.data.dashboard_data import DashboardData
    from whet.dashboard.folders import FolderLibrary
    from whet.gateway.patience import PatientConnection

    data = DashboardData(FolderLibrary(folders_of(config)))
    guarded = GatewayGuard(create_app(data, Site()), Hosts.of(config.host, config.allow_host), _refuse)
    with contextlib.closing(data), listen(config.host, config.port) as listening:
        asyncio.run(answer(guarded, listening, PatientConnection, lambda: on_ready(address_of(listening)), 1))


def _refuse(scope: Scope, error: RequestError) -> ASGIApp:
    from starlette.responses import JSONResponse

    body = {"error": {"code": "forbidden", "message": str(error), "details": []}}
    return JSONResponse(body, status_code=error.status)
