"""From a host and port that code asked for to a connection that the allow-list covers.

A name is resolved here, on the host; every address it leads to is judged, one bad one refuses the request, and the
connection is made to an address that was judged, not to the name again: a name server that changes its answer
(DNS rebinding) gains nothing. The proxy's own address inside stands for the sandbox's origin, where it has one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from whet.sandboxes.network import PROXY_HOST, PROXY_PORT, Address, AllowList, Rule, address_problem, parse_origin
from whet.sandboxes.proxy_http import CHUNK

CONNECT_S = 15.0  # for a name to resolve, and for each address to answer
_OWN = {(PROXY_HOST, PROXY_PORT), ("localhost", PROXY_PORT)}
LOOKUPS = 2  # of a sandbox at once, on threads of its own: slow name servers hold up nobody else


class RefusedError(Exception):
    """The allow-list, or the address behind a name, does not let a request through."""


def lookup(host: str, port: int) -> list[str]:
    """The addresses of a name, by the host's own resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


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
        """What may be reached, for whoever was refused something else."""
        own = [] if self._origin is None else [f"http://{PROXY_HOST}:{PROXY_PORT}"]
        return ", ".join([*own, *(rule.text for rule in self._allowed.rules)])

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def connect(self, host: str, port: int) -> tuple[Rule, asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises RefusedError, OSError when there is no such name or nobody answers, TimeoutError."""
        if self._origin is not None and (host, port) in _OWN:
            rule, port = self._origin
        elif (found := self._allowed.rule_for(host, port)) is not None:
            rule = found
        else:
            raise RefusedError(f"this sandbox may not reach {host}, port {port}")
        failure: OSError = OSError("its name leads to no address")
        for address in [rule.address] if rule.address is not None else await self._addresses(host, port):
            try:
                async with asyncio.timeout(CONNECT_S):
                    return rule, *await asyncio.open_connection(str(address), port, limit=CHUNK)
            except OSError as error:  # TimeoutError is one
                failure = error
        raise failure

    async def _addresses(self, host: str, port: int) -> list[Address]:
        async with asyncio.timeout(CONNECT_S):
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, host, port)
        addresses = [ipaddress.ip_address(text) for text in found]
        for address in addresses:
            problem = address_problem(address) or ("this machine" if is_own_address(address) else None)
            if problem is not None:
                raise RefusedError(f"the name {host} leads to {address}: {problem}")
        return addresses
