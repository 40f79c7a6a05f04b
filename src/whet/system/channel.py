"""Frames between two processes, over any stream socket: a length in four bytes, then the content.

What a process sends that the other one trusts is a pickled tuple. Otherwise it is a line of JSON, and bytes after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import socket
from typing import Any

import whet.errors
from whet.calls import RAISED_AT, place_of

LENGTH_BYTES = 4
LONGEST = 1 << 30
READ_AHEAD = 1 << 20


class BrokenFrameError(Exception):
    """The other side sent something that is no frame."""


class Channel:
    """One end of the connection, on an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """Over one end of a socket pair, or a connected TCP socket."""
        if end.family == socket.AF_UNIX:
            return cls(*await asyncio.open_unix_connection(sock=end, limit=READ_AHEAD))
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(*await asyncio.open_connection(sock=end, limit=READ_AHEAD))

    async def receive(self) -> bytes | None:
        """The next frame; None once the other side is gone. Raises `BrokenFrameError`."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            if length > LONGEST:
                raise BrokenFrameError(f"a frame of {length} bytes")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def send_object(self, message: Any) -> None:
        """Pickled, to a side that trusts this one. Raises what `pickle` raises for a value that cannot be sent."""
        self._send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """A line of JSON, and bytes after it."""
        self._send(json.dumps(head).encode() + b"\n" + body)

    async def flushed(self) -> None:
        """Once the other side has taken most of what was sent; at once where it is gone."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()

    def _send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(len(data).to_bytes(LENGTH_BYTES) + data)


def error_to_words(error: BaseException) -> tuple[str, str, str]:
    """The class of an error, what it says, and the line that raised it (`calls.place_of`)."""
    return type(error).__name__, str(error), place_of(error)


def error_from_words(kind: str, text: str, where: str) -> Exception:
    """The error again; one that whet does not have is a `ModelError` whose text has its name."""
    kind_of_error = getattr(whet.errors, kind, None)
    if not (isinstance(kind_of_error, type) and issubclass(kind_of_error, whet.errors.Error | whet.errors.WhetError)):
        kind_of_error, text = whet.errors.ModelError, f"{kind}: {text}"
    error: Exception = kind_of_error.__new__(kind_of_error)
    error.args = (text,)
    error.__dict__[RAISED_AT] = where
    return error
