"""The service that this machine is logged in to: the hub of `whet login`, where that is one."""

from __future__ import annotations

import os

from whet.errors import ConfigError
from whet.hub.client.connection import HubClient, HubRequestError, connect
from whet.hub.client.settings import HUB_VARIABLE, read_settings
from whet.service.answers import ServiceAnswer

NO_SERVICE = (
    "no training service is set. Start one with: whet service up. Then log in to it: whet login --hub URL "
    "(it prints URL and token). Without a service: whet train run CONFIG"
)


def service_is_set() -> bool:
    """Whether there is an address to ask. Nothing is sent."""
    return bool(os.environ.get(HUB_VARIABLE) or read_settings().hub)


def connect_service(url: str | None = None) -> HubClient:
    """The service, with the token of this machine. Raises `ConfigError` where none is set, or there is no login."""
    if url is None and not service_is_set():
        raise ConfigError(NO_SERVICE)
    service = connect(url)
    if service.token is None:
        raise ConfigError(f"there is no login to {service.url}. Log in with: whet login --hub {service.url}")
    return service


def ask_service(service: HubClient) -> ServiceAnswer:
    """What the service has. Raises `HubRequestError` where the address is a hub that trains nothing."""
    try:
        return service.ask(ServiceAnswer, "GET", "/service")
    except HubRequestError as error:
        if error.code != "not_found":
            raise
        raise HubRequestError(
            f"{service.url} is a hub of environments without a training service. Start one on its folder with: "
            "whet service up --data DIR",
            error.code,
        ) from None
