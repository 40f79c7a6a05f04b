"""`whet service api`: the hub, the service's routes and the dashboard as one server, until a signal ends it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from whet.config import Option
from whet.gateway.serve import address_of, listen
from whet.hub.serve import HubConfig, run
from whet.system.files import expanded

LISTENING = "WHET_SERVICE_SOCKET"
"""The number of an open descriptor: a socket that listens already, of `whet service up`."""


class ApiConfig(HubConfig):
    """`whet service api`. Each description is the option's `--help`."""

    data: Annotated[Path, Option(metavar="DIR")] = Field(
        Path("service"), description="Folder of the runs, the database, packages and the key of the secrets."
    )
    port: Annotated[int, Option("-p")] = Field(8090, ge=0, le=65535, description="Port; 0 takes a free one.")
    webhook_allow: Annotated[tuple[str, ...], Option(metavar="CIDR")] = Field(
        (), description="A network that webhooks may be sent to, besides public addresses; may be repeated."
    )


def serve_api(config: ApiConfig, on_ready: Callable[[str, str | None], None]) -> None:
    """Serve until interrupted. `on_ready` is called with the address, and at the first start with the token of the
    administrator, once requests are answered.

    Raises `ConfigError` where the port is taken, or the data cannot be used.
    """
    from whet.hub.worker import Worker
    from whet.service.api.app import create_service_app
    from whet.service.service import open_service
    from whet.service.webhooks.addresses import networks
    from whet.service.webhooks.sender import WebhookSender

    allowed = networks(config.webhook_allow)
    data = expanded(config.data).absolute()
    opened = open_service(data, config.database, config.storage, config.upstream, tries=config.actions)
    with (
        given_or_listen(config.host, config.port) as listening,
        opened as (service, token),
        contextlib.ExitStack() as stack,
    ):
        app = create_service_app(service)
        app.state.webhook_networks = allowed
        stack.callback(app.state.dashboard_data.close)
        sender = WebhookSender(service.hub.database, service.hub.cipher, allowed)
        sender.start()
        stack.callback(sender.stop)
        if config.actions:
            worker = Worker(service.hub)
            worker.start()
            stack.callback(worker.stop)
        run(app, listening, lambda: on_ready(address_of(listening), token))


def given_or_listen(host: str, port: int) -> socket.socket:
    """The socket that `whet service up` passes on, else one that listens from now on."""
    given = os.environ.pop(LISTENING, None)
    return socket.socket(fileno=int(given)) if given is not None else listen(host, port)
