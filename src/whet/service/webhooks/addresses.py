"""Which addresses a webhook may be sent to: public ones, and the networks that the service's operator allows.

The name of a URL is resolved once for each attempt, each of its addresses has to be allowed, and the connection goes to
one of those that were checked. So a name that resolves to something else a moment later reaches nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from whet.errors import ConfigError, WhetError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
LONGEST = 2000
PORTS = {"https": 443, "http": 80}
FIRST_FREE_PORT = 1024
"""Below it only the ports of the web are used: the others are those of mail, files and logins."""
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*\.?", re.I)
_CONTROL = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}]")
# What `is_global` of some Python calls public, and what leads to an IPv4 address that is not looked at.
_REFUSED = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "168.63.129.16/32",  # the metadata of a cloud
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "240.0.0.0/4",
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
    )
)


class AddressRefusedError(WhetError):
    """A webhook's URL, or an address that its name stands for, may not be used."""


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where a webhook is sent to, by its URL."""

    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def target_of(url: str) -> WebhookTarget:
    """The parts of a URL. Raises `AddressRefusedError` for what no webhook needs."""
    if len(url) > LONGEST or _CONTROL.search(url):
        raise AddressRefusedError(
            f"the URL has characters that belong percent-encoded, or more than {LONGEST} of them."
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise AddressRefusedError("this is no URL. Give https://HOST/PATH.") from None
    if parts.scheme not in PORTS:
        raise AddressRefusedError("the URL has to begin with https:// or http://.")
    if "@" in parts.netloc or parts.fragment:
        raise AddressRefusedError("the URL may not have a user, a password or a part after '#'.")
    literal = _literal(host)
    if literal is None and (not _HOST.fullmatch(host) or host.rstrip(".").rpartition(".")[2][:1].isdigit()):
        raise AddressRefusedError("the URL has no host name. An international name is written as xn--...")
    if port is None:
        port = PORTS[parts.scheme]
    if port not in PORTS.values() and port < FIRST_FREE_PORT:
        raise AddressRefusedError(f"port {port} is not one of the web: 80, 443, or one from {FIRST_FREE_PORT} up.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, host, port, path)


def check_url(url: str, allowed: Sequence[Network] = ()) -> WebhookTarget:
    """What can be said of a URL before its name is resolved. Raises `AddressRefusedError`."""
    target = target_of(url)
    literal = _literal(target.host)
    if literal is not None:
        _check(literal, allowed)
    if target.host.rstrip(".").lower() in ("localhost",) or target.host.rstrip(".").lower().endswith(".localhost"):
        _check(ip_address("127.0.0.1"), allowed)
    return target


async def addresses_of(target: WebhookTarget, resolve: Resolve, allowed: Sequence[Network]) -> list[str]:
    """The addresses that the target's host stands for now. Raises `AddressRefusedError` unless each may be used."""
    literal = _literal(target.host)
    if literal is not None:
        addresses = [str(literal)]
    else:
        try:
            addresses = list(dict.fromkeys(await resolve(target.host, target.port)))
        except OSError as error:
            raise AddressRefusedError(f"the name does not resolve ({error.strerror or 'unknown'}).") from None
    if not addresses:
        raise AddressRefusedError("the name has no address.")
    for text in addresses:
        address = _literal(text)
        if address is None:
            raise AddressRefusedError("the name resolves to something that is no address.")
        _check(address, allowed)
    return addresses


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """Addresses of a name, by the system's resolver."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in entries]


def networks(given: Sequence[str]) -> list[Network]:
    """Those of `--webhook-allow`. Raises `ConfigError`."""
    try:
        return [ip_network(text) for text in given]
    except ValueError as error:
        raise ConfigError(f"--webhook-allow: {error}. Give a network as ADDRESS/BITS, such as 10.1.0.0/16.") from None


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)  # one with a scope (fe80::1%eth0) is none of the networks that may be used
    except ValueError:
        return None


def _check(address: Address, allowed: Sequence[Network]) -> None:
    if any(address.version == network.version and address in network for network in allowed):
        return
    refused = any(address.version == network.version and address in network for network in _REFUSED)
    if refused or not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        raise AddressRefusedError(
            "webhooks are sent to public addresses only. For a network of your own the service is started with "
            "--webhook-allow CIDR."
        )
