"""`--offline`: nothing that this process does leaves the machine.

The hub libraries are set to use only what they have downloaded already, before they are imported, and any other
connection or name lookup beyond loopback is refused where Python makes it (PEP 578). Programs that an environment
starts are not watched; a sandbox has no network unless it is given one.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from whet.errors import ConfigError

HUB_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
HUB_LIBRARY = "huggingface_hub.constants"
_watched = False


class OfflineError(ConnectionError):
    """Something tried to reach another machine. Libraries treat it as a network that is not there."""


def go_offline() -> None:
    """From now on, refuse what would leave the machine; for this process and those that it starts from Python.

    Raises `ConfigError` where the hub library was imported without that setting, since it would connect to the hub.
    """
    global _watched
    for name in HUB_VARIABLES:
        os.environ[name] = "1"
    hub = sys.modules.get(HUB_LIBRARY)
    if hub is not None and not hub.HF_HUB_OFFLINE:
        raise ConfigError("offline: huggingface_hub was imported before; set HF_HUB_OFFLINE=1 and start again.")
    if not _watched:
        _watched = True
        sys.addaudithook(_refuse)


def check_loopback(url: str) -> None:
    """Raise `ConfigError` for an endpoint that is not on this machine."""
    host = urlsplit(url).hostname or ""
    if not is_loopback(host):
        raise ConfigError(f"--offline: the endpoint {url} is not on this machine; leave --offline out to reach it.")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine and no other."""
    if host.rstrip(".").lower() in ("localhost", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        address = args[1]
        if isinstance(address, tuple):  # others are sockets in the file system
            _check(address[0])
    elif event == "socket.sendto" and isinstance(args[1], tuple):
        _check(args[1][0])
    elif event == "socket.getaddrinfo":
        _check(args[0])


def _check(host: object) -> None:
    name = host.decode(errors="replace") if isinstance(host, bytes) else host
    # No name, and the unspecified addresses, are this machine: what a server binds to.
    if isinstance(name, str) and name not in ("", "0.0.0.0", "::") and not is_loopback(name):
        raise OfflineError(f"--offline: {name} is not on this machine")
