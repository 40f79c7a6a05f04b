"""The messages between a session and its workers, over any stream socket.

A frame is its length in four bytes, then its content. To a worker, that is a pickled tuple: dataset rows are any Python
values. From a worker it is a line of JSON, and after it, as they stand in the file, rows: what runs the code of
environments gets to unpickle nothing here.
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
FIELDS: dict[str, tuple[str, ...]] = {
    "ready": (),
    "alive": (),
    "rows": ("job", "indices"),
    "states": ("job", "indices"),
    "ended": ("job",),
    "freed": ("job",),
    "settled": ("frames",),
    "spent": ("cost", "unpriced_tokens"),
    "log": ("logger", "level", "text"),
    "ask": ("number", "source", "rollout", "turn", "model", "job"),
    "forget": ("number",),
    "release": ("rollout",),
    "mistake": ("error",),
    "bug": ("traceback",),
}
"""The messages of a worker, and their fields."""


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
        """To a worker. Raises what `pickle` raises for a value that cannot be sent."""
        self._send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """From a worker."""
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


def read_head(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Head and body of a worker's frame. Raises `BrokenFrameError` where it is none, or lacks what its kind has."""
    line, _, body = frame.partition(b"\n")
    try:
        head = json.loads(line)
    except ValueError as error:
        raise BrokenFrameError(f"a head that is not JSON ({error})") from None
    if not isinstance(head, dict):
        raise BrokenFrameError("a head that is no object")
    kind = head.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise BrokenFrameError(f"a message of the kind {kind!r}")
    lacking = [name for name in FIELDS[kind] if name not in head]
    if lacking:
        raise BrokenFrameError(f"a message of the kind {kind!r} without {', '.join(lacking)}")
    words = head.get("error", ["", "", ""])
    if not (isinstance(words, list) and len(words) == 3 and all(isinstance(word, str) for word in words)):
        raise BrokenFrameError("an error that is not its class, its text and its line")
    return head, body


def error_to_words(error: BaseException) -> tuple[str, str, str]:
    """The class of an error, what it says, and the line that raised it (`calls.place_of`)."""
    return type(error).__name__, str(error), place_of(error)


def error_from_words(kind: str, text: str, place: str) -> Exception:
    """The error again; one that whet does not have is a `ModelError` whose text has its name."""
    found = getattr(whet.errors, kind, None)
    if not (isinstance(found, type) and issubclass(found, whet.errors.Error | whet.errors.WhetError)):
        found, text = whet.errors.ModelError, f"{kind}: {text}"
    error: Exception = found.__new__(found)
    error.args = (text,)
    error.__dict__[RAISED_AT] = place
    return error
