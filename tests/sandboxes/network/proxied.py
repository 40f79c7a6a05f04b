"""A server, a proxy that reaches it, and a client of the proxy, between real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from whet.sandboxes.network import dial
from whet.sandboxes.network.allow_list import AllowList
from whet.sandboxes.network.dial import Dialer
from whet.sandboxes.network.proxy import AllowListProxy

PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep-Alive: timeout=5\r\nX-Kept: yes\r\n\r\nhello"
Script = Callable[["Place"], Coroutine[Any, Any, None]]


class Server:
    """Answers every connection the same way and keeps what it was sent."""

    def __init__(self, answer: bytes, closes: bool = True) -> None:
        self.answer = answer
        self.closes = closes
        self.heard: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(b"")
        index = len(self.heard) - 1
        answered = False
        while data := await reader.read(65536):
            self.heard[index] += data
            if not answered and (b"\r\n\r\n" in self.heard[index] or not self.answer.startswith(b"HTTP")):
                answered = True
                writer.write(self.answer)
                await writer.drain()
                if self.closes:
                    break
        writer.close()


class Place:
    """A server, a proxy that reaches it under a name, and a way to talk to the proxy."""

    def __init__(self, server: Server, port: int, served: AllowListProxy, door: int) -> None:
        self.server, self.port, self.proxy, self.door = server, port, served, door

    @property
    def url(self) -> str:
        return f"http://web.test:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.door)

    async def say(self, *parts: str | bytes) -> bytes:
        """Send these, one after the other, and read to the end."""
        reader, writer = await self.connect()
        for part in parts:
            writer.write(part.encode() if isinstance(part, str) else part)
            await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer


@contextlib.asynccontextmanager
async def place(
    answer: bytes = PAGE,
    *,
    entries: tuple[str, ...] = ("web.test=127.0.0.1:{port}",),
    lookup: Callable[[str, int], list[str]] = dial.lookup,
    closes: bool = True,
    connections: int = 4,
    max_bytes: int = 1 << 20,
    origin: str | None = None,
    **times: float,
) -> AsyncIterator[Place]:
    server = Server(answer, closes)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        allowed = AllowList.parse([entry.format(port=port) for entry in entries])
        listener = socket.create_server(("127.0.0.1", 0))
        door = listener.getsockname()[1]
        dialer = Dialer(allowed, lookup, None if origin is None else origin.format(port=port))
        served = AllowListProxy("box", listener, dialer, connections, max_bytes, **times)
        try:
            yield Place(server, port, served, door)
        finally:
            await served.close()


def run(script: Script, *arguments: Any, **options: Any) -> None:
    async def main() -> None:
        async with place(*arguments, **options) as there:
            await script(there)

    asyncio.run(main())


def tunnel(there: Place) -> str:
    return f"CONNECT web.test:{there.port} HTTP/1.1\r\nHost: x\r\n\r\n"
