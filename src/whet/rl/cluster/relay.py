"""`KeyedRelay`: a Unix socket on a TCP port of this node, for connections that have the key.

An engine's server listens on a Unix socket, since vLLM guards some of its paths only. On a cluster the run is on
another host. So the first request of each connection has to have the key in a header. Before that not a byte is passed
on, and after it all of them, as they are.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from contextlib import suppress
from pathlib import Path

LONGEST_HEAD = 64 << 10
HEAD_WITHIN_S = 30.0
PIECE = 256 << 10
REFUSED = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class KeyedRelay:
    """Listens from a thread of its own until it is closed, or the process ends."""

    def __init__(self, socket: Path, host: str, header: str, value: str) -> None:
        """`header` and `value` are what requests have to have; `host` is the address to listen at."""
        self._socket, self._expected = socket, (header.lower().encode(), value.encode())
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, host, 0, limit=LONGEST_HEAD, backlog=2048)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        threading.Thread(target=self._loop.run_forever, name="whet relay", daemon=True).start()

    def close(self) -> None:
        """Connections break off."""
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                async with asyncio.timeout(HEAD_WITHIN_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                if self._has_key(head):
                    await self._pass_on(head, reader, writer)
                else:
                    writer.write(REFUSED)
                    await writer.drain()
        finally:
            writer.close()

    def _has_key(self, head: bytes) -> bool:
        lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        values = [value.strip() for name, _, value in lines if name.strip().lower() == self._expected[0]]
        return len(values) == 1 and hmac.compare_digest(values[0], self._expected[1])

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one of both sides is closed: then the other one is, which is how a request is given up."""
        from_server, to_server = await asyncio.open_unix_connection(str(self._socket))
        both: list[asyncio.Task[None]] = []
        try:
            to_server.write(head)
            both = [asyncio.create_task(_copy(reader, to_server)), asyncio.create_task(_copy(from_server, writer))]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            to_server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
