"""`whet hub serve`: a hub as a server, until a signal ends it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from whet.config import Option, StrictModel
from whet.gateway.serve import address_of, answer, listen
from whet.system.files import expanded

if TYPE_CHECKING:
    from fastapi import FastAPI


class HubConfig(StrictModel):
    """`whet hub serve`. Each description is the option's `--help`."""

    data: Annotated[Path, Option(metavar="DIR")] = Field(
        Path("hub"), description="Folder of the database, the packages and the key of the secrets; made if absent."
    )
    database: Annotated[str | None, Option(metavar="URL")] = Field(
        None, description="postgresql://USER@HOST/NAME, or sqlite:///FILE; if absent, hub.sqlite in DIR."
    )
    storage: Annotated[str | None, Option(metavar="URL")] = Field(
        None, description="Where packages are kept: a folder or an fsspec URL; if absent, files in DIR."
    )
    upstream: Annotated[str, Option(metavar="URL")] = Field(
        "https://pypi.org/simple/",
        pattern=r"^https?://[^\s]+$",
        description="Index that answers for names which are not on this hub.",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: Annotated[int, Option("-p")] = Field(8090, ge=0, le=65535, description="Port; 0 takes a free one.")
    actions: bool = Field(True, description="Try what is pushed in a sandbox.")


def serve(config: HubConfig, on_ready: Callable[[str, str | None], None]) -> None:
    """Serve until interrupted. `on_ready` is called with the address, and at the first start with the token of the
    administrator, once requests are answered.

    Raises `ConfigError` where the port is taken, or the data cannot be used.
    """
    from whet.hub.api.app import create_app
    from whet.hub.opening import open_hub
    from whet.hub.worker import Worker

    listening = listen(config.host, config.port)
    data = expanded(config.data).absolute()
    with listening, open_hub(data, config.database, config.storage, config.upstream) as (hub, token):
        worker = Worker(hub) if config.actions else None
        try:
            if worker is not None:
                worker.start()
            run(create_app(hub), listening, lambda: on_ready(address_of(listening), token))
        finally:
            if worker is not None:
                worker.stop()


def run(app: FastAPI, listening: socket.socket, on_ready: Callable[[], None]) -> None:
    """Answer requests until a signal."""
    from whet.gateway.patience import PatientConnection

    asyncio.run(answer(app, listening, PatientConnection, on_ready, 2))
