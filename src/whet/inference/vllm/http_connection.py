"""Keep-alive HTTP/1.1 over a Unix socket or TCP, for requests of a tenth of a millisecond.

An engine of a small model answers hundreds of requests a second, many at a time. General clients cost more than the
answer does (httpx 2.7 ms of CPU a request at 256 at once, where this takes 0.06 ms), so requests are written here and
answers are read by httptools, the parser that the server behind them uses too. A connection does one request at a
time; giving a request up closes its connection, which is how the other side learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httptools

OnBody = Callable[[bytes], None]


class EngineHttpResponse(NamedTuple):
    """Status and body of one answer."""

    status: int
    body: bytes


class HttpPool:
    """Connections to one server, made as they are needed and used again. For one event loop at a time."""

    def __init__(self, address: Path | tuple[str, int], headers: dict[str, str], *, tls: bool = False) -> None:
        """`address` is a Unix socket, or host and port (with `tls` by TLS). `headers` go with every request."""
        self._address, self._tls = address, tls
        host = "engine" if isinstance(address, Path) else f"{address[0]}:{address[1]}"
        fixed = {"host": host, **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fixed.items()).encode("ascii")
        self._free: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def request(
        self, method: str, path: str, body: bytes = b"", on_body: OnBody | None = None
    ) -> EngineHttpResponse:
        """The answer to one request. With `on_body` the body of an answer of status 200 is passed on in pieces instead.

        It is sent again where a connection that was used before turns out to be closed. Raises `ConnectionError` where
        the server cannot be reached or goes away before it has answered. What `on_body` raises ends the request.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._free, self._open = loop, [], set()
        head = f"{method} {path} HTTP/1.1\r\ncontent-length: {len(body)}\r\n".encode("ascii")
        message = head + self._head + b"\r\n" + body
        while True:
            reused = (connection := self._idle()) is not None
            if connection is None:
                try:
                    connection = await self._connected(loop)
                except OSError as error:
                    raise ConnectionError(str(error)) from error
                self._open.add(connection)
            try:
                answer = await connection.request(message, on_body)
            except BaseException as error:
                self._open.discard(connection)
                connection.close()
                # A server closes connections that are idle; where the event loop stood still, it is noticed only now.
                if reused and connection.silent and isinstance(error, ConnectionError):
                    continue
                raise
            self._free.append(connection)
            return answer

    def _idle(self) -> _Connection | None:
        """One that is open, as far as is known."""
        while self._free:
            if not (connection := self._free.pop()).lost:
                return connection
            self._open.discard(connection)
        return None

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        if isinstance(self._address, Path):
            return (await loop.create_unix_connection(_Connection, str(self._address)))[1]
        host, port = self._address
        return (await loop.create_connection(_Connection, host, port, ssl=self._tls or None))[1]

    def close(self) -> None:
        """Cancel all requests and close every connection."""
        if self._loop is not None and not self._loop.is_closed():
            for connection in self._open:
                connection.close()
        self._free, self._open = [], set()


class _Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self) -> None:
        self.lost = False
        self.silent = True
        """Whether nothing of the answer to the latest request has arrived."""
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[EngineHttpResponse] | None = None
        self._parser: Any = None
        self._pieces: list[bytes] = []
        self._on_body: OnBody | None = None

    async def request(self, request: bytes, on_body: OnBody | None) -> EngineHttpResponse:
        assert self._transport is not None
        if self.lost:
            raise ConnectionError("the connection was closed")
        self._waiter, self.silent = asyncio.get_running_loop().create_future(), True
        self._parser, self._pieces, self._on_body = httptools.HttpResponseParser(self), [], on_body
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.fail(ConnectionError(str(error) if error else "the connection was closed"))

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:  # no request is in progress
            self.close()
            return
        self.silent = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.fail(error.__context__ if isinstance(error.__context__, Exception) else error)
        except httptools.HttpParserError as error:
            self.fail(ConnectionError(f"the answer is not HTTP: {error}"))

    def on_body(self, data: bytes) -> None:
        if self._on_body is not None and self._parser.get_status_code() == 200:
            self._on_body(data)
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(EngineHttpResponse(self._parser.get_status_code(), b"".join(self._pieces)))

    def fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
