"""Connections for the HTTP library of provider packages, of which a free one is found at once.

The library's own pool looks at each of its connections for every request and every response: with 256 at once that
is more than half of a request's processor time. Here the one that came back last goes out first, and is all that is
looked at. And a request goes onto the wire as a whole, where the library sends its headers and its body one after the
other. What a connection is (TLS, time-outs, errors) is left to the library.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from types import ModuleType
from typing import Any
from urllib.request import getproxies

IDLE_S = 5.0
"""Seconds after which an idle connection is closed, as the library does."""
WRITTEN_AT_ONCE = 1 << 16
"""Bytes of a request that wait for its end at most."""


def transport(http: ModuleType, *, most: int, kept: int) -> Any:
    """For a client of `http` (httpx, or httpx2): at most `most` connections at once, `kept` of them while idle.

    None, for the library's own choice, where the environment names a proxy: it finds those for its own transports only.
    """
    if set(getproxies()) - {"no"}:
        return None
    core = importlib.import_module(http.__name__.replace("httpx", "httpcore"))  # what the library sends with
    contact = FirstContact()
    connection = functools.partial(
        core.AsyncHTTPConnection,
        ssl_context=_trust(http),
        keepalive_expiry=IDLE_S,
        network_backend=_Network(core.AnyIOBackend(), core.WriteError, contact.made),
        socket_options=_keep_alive(),
    )
    return Connections(connection, Wire(http, core), contact, most=most, kept=kept)


@functools.cache
def _trust(http: ModuleType) -> Any:
    """Which certificates are trusted: read once, as that takes longer than all else that a client needs."""
    return http.create_ssl_context()


class Wire:
    """Requests and responses of `http` as those of `core`, the library that sends them; errors have the same names."""

    def __init__(self, http: ModuleType, core: ModuleType) -> None:
        self.http, self.core = http, core
        self._errors = (core.TimeoutException, core.NetworkError, core.ProtocolError, core.UnsupportedProtocol)
        outer = self

        class Body(http.AsyncByteStream):  # type: ignore[name-defined, misc]  # clients insist on their own type
            """The body of a response, whose connection is free again once it is closed."""

            def __init__(self, body: Any, give_back: Callable[[], Any]) -> None:
                self._body, self._give_back = body, give_back

            async def __aiter__(self) -> AsyncIterator[bytes]:
                with outer.errors():
                    async for part in self._body:
                        yield part

            async def aclose(self) -> None:
                try:
                    await self._body.aclose()
                finally:
                    await self._give_back()

        self.body = Body

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise getattr(self.http, type(error).__name__)(str(error)) from error

    def request(self, request: Any) -> Any:
        url = request.url
        target = self.core.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        parts = {"headers": request.headers.raw, "content": request.stream, "extensions": request.extensions}
        return self.core.Request(request.method, target, **parts)

    def response(self, response: Any, give_back: Callable[[], Any]) -> Any:
        body = self.body(response.stream, give_back)
        return self.http.Response(
            response.status, headers=response.headers, stream=body, extensions=response.extensions
        )


class Connections:
    """A transport of `wire.http`. `make` gives a connection to an origin. Of one event loop at a time."""

    def __init__(self, make: Callable[[Any], Any], wire: Wire, contact: FirstContact, *, most: int, kept: int) -> None:
        self._make, self._wire, self._core, self._contact = make, wire, wire.core, contact
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
        with self._wire.errors():
            return await self._send(self._wire.request(request))

    async def _send(self, request: Any) -> Any:
        await self._place(request.extensions.get("timeout", {}).get("pool"))
        try:
            connection = await self._free(request.url.origin)
        except BaseException:
            self._places.release()
            raise
        self._out.add(connection)
        try:
            response = await connection.handle_async_request(request)
        except BaseException as error:
            await self._back(connection)
            unreachable = isinstance(error, (self._core.ConnectError, self._core.ConnectTimeout))
            if unreachable and self._contact.failed() and may_give_up():
                raise GivenUp(reason(error)) from error
            raise
        return self._wire.response(response, functools.partial(self._back, connection))

    async def _place(self, timeout: float | None) -> None:
        if not self._places.locked():
            await self._places.acquire()  # at once
            return
        try:
            async with asyncio.timeout(timeout):
                await self._places.acquire()
        except TimeoutError:
            raise self._core.PoolTimeout(f"no connection was free within {timeout:g} s") from None

    async def _free(self, origin: Any) -> Any:
        """The connection that was used last, if it is good for another request; else a new one."""
        while self._idle:
            _, connection = self._idle.pop()
            if connection.can_handle_request(origin) and not connection.has_expired():
                return connection
            await connection.aclose()
        return self._make(origin)

    async def _back(self, connection: Any) -> None:
        if connection not in self._out:  # closed meanwhile, or given back before
            return
        self._out.remove(connection)
        self._places.release()
        if connection.is_idle() and self._kept:
            self._idle.append((monotonic(), connection))
        else:
            await connection.aclose()
        if self._idle and (len(self._idle) > self._kept or self._idle[0][0] < monotonic() - IDLE_S):
            _, oldest = self._idle.popleft()
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


class _Network:
    """The library's way to reach servers, with streams as below."""

    def __init__(self, network: Any, write_error: type[Exception], on_write: Callable[[], None]) -> None:
        self._network, self._write_error, self._on_write = network, write_error, on_write

    async def connect_tcp(self, *given: Any, **named: Any) -> _BatchedStream:
        return _BatchedStream(await self._network.connect_tcp(*given, **named), self._write_error, self._on_write)


class _BatchedStream:
    """A stream of the library's whose writes are collected until there are many or an answer is read."""

    def __init__(self, stream: Any, write_error: type[Exception], on_write: Callable[[], None]) -> None:
        self._stream, self._write_error, self._on_write = stream, write_error, on_write
        self._unwritten: list[bytes] = []
        self._bytes = 0
        self._timeout: float | None = None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unwritten.append(buffer)
        self._bytes += len(buffer)
        self._timeout = timeout
        if self._bytes > WRITTEN_AT_ONCE:
            await self._flush()

    async def _flush(self) -> None:
        whole, self._unwritten, self._bytes = b"".join(self._unwritten), [], 0
        self._on_write()
        await self._stream.write(whole, self._timeout)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._unwritten:
            with contextlib.suppress(self._write_error):  # as the library: a server may answer before it hangs up
                await self._flush()
        got: bytes = await self._stream.read(max_bytes, timeout)
        return got

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(self, *given: Any, **named: Any) -> _BatchedStream:
        return _BatchedStream(await self._stream.start_tls(*given, **named), self._write_error, self._on_write)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _keep_alive() -> list[tuple[int, int, int]]:
    """An answer may take an hour; a connection on which nothing is said meanwhile is taken for dead on its way."""
    seconds = [("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5)]
    known = [(getattr(socket, name), value) for name, value in seconds if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *((socket.IPPROTO_TCP, name, value) for name, value in known)]


# Whether an endpoint is worth waiting for that has not been reached yet: for some seconds, and then no longer.
#
# A server that is being restarted is waited for with all the retries a request has. But an address that was never
# reached is most likely wrong, or the server is not running; waiting a minute for that is of no use.

GRACE_S = 5.0
"""Seconds that a server has to come up, after the first connection to it failed."""


class FirstContact:
    """Records whether connections to one endpoint succeed or fail."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made = False
        self._failed_at: float | None = None  # the first time

    def made(self) -> None:
        """A request was on its way to the endpoint."""
        self._made = True

    def failed(self) -> bool:
        """A connection could not be opened; returns whether to give up the endpoint."""
        if self._made:
            return False
        now = self._clock()
        if self._failed_at is None:
            self._failed_at = now
        return now - self._failed_at >= GRACE_S


def reason(error: BaseException) -> str:
    """Why a connection could not be opened, in the system's words where it said."""
    text, link = str(error), error.__cause__ or error.__context__
    while link is not None:
        if isinstance(link, OSError) and link.errno and not isinstance(link, ssl.SSLError):
            text = os.strerror(link.errno) if link.errno > 0 else str(link.strerror)  # of name resolution, less than 0
        link = link.__cause__ or link.__context__
    return text or "no connection was made in time"


class GivenUp(BaseException):
    """The endpoint was never reached. Not an `Exception`: after each of those the providers' packages retry."""


_may_give_up: ContextVar[bool] = ContextVar("whet_may_give_up", default=False)


def may_give_up() -> bool:
    """Whether the caller knows what to do with a `GivenUp`."""
    return _may_give_up.get()


@contextmanager
def giving_up() -> Iterator[None]:
    """Within, an endpoint that was never reached raises `GivenUp`."""
    token = _may_give_up.set(True)
    try:
        yield
    finally:
        _may_give_up.reset(token)
