"""Connect to a host and port that the code requested, if the allow-list covers it.

A name is resolved here, on the host. Every address it resolves to is checked, and one bad address refuses the request.
The connection is made to a checked address and not to the name again, which prevents DNS rebinding. The proxy's own
address inside represents the sandbox's origin, where it has one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from whet.sandboxes.network.allow_list import (
    PROXY_HOST,
    PROXY_PORT,
    Address,
    AllowList,
    Rule,
    address_problem,
    parse_origin,
)
from whet.sandboxes.network.proxy_http import CHUNK
from whet.system.peer_timeout import peer_timeout

CONNECT_S = 15.0  # for a name to resolve, and for each address to answer
_OWN = {(PROXY_HOST, PROXY_PORT), ("localhost", PROXY_PORT)}
LOOKUPS = 2  # of a sandbox at once, on its own threads: slow name servers do not delay others


class DialRefusedError(Exception):
    """The allow-list, or the address behind a name, does not let a request through."""


def lookup(host: str, port: int) -> list[str]:
    """The addresses of a name, by the host's own resolver."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def is_own_address(address: Address) -> bool:
    """Whether the machine reaches itself under this address: services on it may be meant for others only.

    Connecting a datagram socket sends nothing; it only picks the source address.
    """
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:  # no way leads there at all
            return False
        return ipaddress.ip_address(probe.getsockname()[0]) == address


class Dialer:
    """Opens connections for one sandbox."""

    def __init__(
        self, allowed: AllowList, lookup: Callable[[str, int], list[str]] = lookup, origin: str | None = None
    ) -> None:
        self._allowed = allowed
        self._origin = None if origin is None else parse_origin(origin)
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="whet-lookup")

    @property
    def has_origin(self) -> bool:
        return self._origin is not None

    def describe(self) -> str:
        """The allowed hosts, for the message of a refusal."""
        own = [] if self._origin is None else [f"http://{PROXY_HOST}:{PROXY_PORT}"]
        return ", ".join([*own, *(rule.text for rule in self._allowed.rules)])

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def connect(self, host: str, port: int) -> tuple[Rule, asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises DialRefusedError, OSError when the name does not exist or the host does not respond, TimeoutError."""
        if self._origin is not None and (host, port) in _OWN:
            rule, port = self._origin
        elif (allowed := self._allowed.rule_for(host, port)) is not None:
            rule = allowed
        else:
            raise DialRefusedError(f"this sandbox may not reach {host}, port {port}")
        failure: OSError = OSError("its name leads to no address")
        for address in [rule.address] if rule.address is not None else await self._addresses(host, port):
            try:
                async with peer_timeout(CONNECT_S):
                    return rule, *await asyncio.open_connection(str(address), port, limit=CHUNK)
            except OSError as error:  # TimeoutError is one
                failure = error
        raise failure

    async def _addresses(self, host: str, port: int) -> list[Address]:
        async with peer_timeout(CONNECT_S):
            entries = await asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, host, port)
        addresses = [ipaddress.ip_address(text) for text in entries]
        for address in addresses:
            problem = address_problem(address) or ("this machine" if is_own_address(address) else None)
            if problem is not None:
                raise DialRefusedError(f"the name {host} leads to {address}: {problem}")
        return addresses
