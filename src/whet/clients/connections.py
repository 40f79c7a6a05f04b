"""A transport for the HTTP library of provider packages in which a free connection is found at once.

The library's own pool looks at each of its connections for every request and every response: with 256 at once that
is more than half of a request's processor time. Here each connection is a transport of the library's with room for
one, and the one that came back last goes out first; what a connection is (TLS, time-outs, errors) stays the library's
business.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic
from types import ModuleType
from typing import Any
from urllib.request import getproxies

IDLE_S = 5.0
"""Seconds after which a connection that nobody used is closed, as the library does."""


def transport(http: ModuleType, *, most: int, kept: int) -> Any:
    """For a client of `http` (httpx, or httpx2): at most `most` connections at once, `kept` of them while idle.

    None, for the library's own choice, where the environment names a proxy: it finds those for its own transports only.
    """
    if set(getproxies()) - {"no"}:
        return None
    context = http.create_ssl_context()
    limits = http.Limits(max_connections=1, max_keepalive_connections=min(kept, 1), keepalive_expiry=IDLE_S)
    make = functools.partial(http.AsyncHTTPTransport, verify=context, limits=limits, socket_options=_keep_alive())
    stream = type("Answer", (_Answer, http.AsyncByteStream), {})
    return Connections(make, stream, http.PoolTimeout, most=most, kept=kept)


class Connections:
    """The transport; `make` gives one with room for a single connection. Of one event loop at a time."""

    def __init__(
        self, make: Callable[[], Any], stream: Callable[..., Any], timeout: type[Exception], *, most: int, kept: int
    ) -> None:
        self._make, self._stream, self._timeout = make, stream, timeout
        self._most, self._kept = most, kept
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forget()

    def _forget(self) -> None:
        self._places = asyncio.Semaphore(self._most)
        self._idle: deque[tuple[float, Any]] = deque()  # since when, the longest first
        self._out: set[Any] = set()

    async def handle_async_request(self, request: Any) -> Any:
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            self._forget()  # connections end with the loop they were opened on
        await self._place(request.extensions.get("timeout", {}).get("pool"))
        connection = self._idle.pop()[1] if self._idle else self._make()
        self._out.add(connection)
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await self._back(connection)
            raise
        response.stream = self._stream(response.stream, functools.partial(self._back, connection))
        return response

    async def _place(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout if self._places.locked() else None):
                await self._places.acquire()
        except TimeoutError:
            raise self._timeout(f"no connection was free within {timeout:g} s") from None

    async def _back(self, connection: Any) -> None:
        if connection not in self._out:  # closed meanwhile, or given back before
            return
        self._out.remove(connection)
        self._places.release()
        self._idle.append((monotonic(), connection))
        since, oldest = self._idle[0]
        if len(self._idle) > self._kept or since < monotonic() - IDLE_S:
            self._idle.popleft()
            await oldest.aclose()

    async def aclose(self) -> None:
        connections = [*self._out, *(connection for _, connection in self._idle)]
        self._forget()
        for connection in connections:
            await connection.aclose()

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Answer:
    """The body of a response, whose connection is free again once it is closed."""

    def __init__(self, body: Any, give_back: Callable[[], Any]) -> None:
        self._body, self._give_back = body, give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            await self._give_back()


def _keep_alive() -> list[tuple[int, int, int]]:
    """An answer may take an hour; a connection on which nothing is said meanwhile is taken for dead on its way."""
    seconds = [("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5)]
    known = [(getattr(socket, name), value) for name, value in seconds if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *((socket.IPPROTO_TCP, name, value) for name, value in known)]
