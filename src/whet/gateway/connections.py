"""Connections of the gateway: how long a request's head may take, how large it may be, how many there may be.

    waiting for a head ──▶ receiving a body ──▶ being answered ──▶ waiting for the next head
       `HEAD_S`, `HEAD_BYTES`   `BODY_S`, `bodies.py`   `streams.py`   uvicorn's keep-alive

At `most` connections a new one takes the place of the one that has kept the server waiting longest, so that half-open
requests keep no other from being answered. One that is being answered is never closed for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from whet.gateway.patience import BODY_S, HEAD_S, Patience

HEAD_BYTES = 64 << 10
MOST = 8192
_WANTED_FILES = 1 << 16


def raise_open_files() -> int:
    """Let this process have as many files open as it may, up to 65,536. How many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS may allow less than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _WANTED_FILES if soft == resource.RLIM_INFINITY else soft


def limited_connections() -> type[LimitedConnection]:
    """For the servers of this process, which leave half of its files to everything else."""
    LimitedConnection.most = max(16, min(MOST, raise_open_files() // 2))
    return LimitedConnection


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's, with limits on what has not become a request yet."""

    most = MOST

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_size = 0
        self._in_message = False  # a head is complete, and its body is not
        self._since = 0.0  # when it was the client's turn

    @property
    def waits_for_client(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._body = Patience(self.loop, lambda: self._refuse(408), lambda: self.flow.read_paused)
        if len(self.connections) > self.most:
            self._close_longest_waiting()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        self._body.wait_for(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_message:
            self._await_head()
            self._head_size += len(data)
        else:
            self._body.received(len(data))
        super().data_received(data)
        if not self._in_message and self._head_size > HEAD_BYTES:
            self._refuse(431)

    def on_headers_complete(self) -> None:
        self._head_arrived()
        self._in_message = True
        self._body.wait_for("body", BODY_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_message = False
        self._body.wait_for(None)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._refuse, 408)

    def _head_arrived(self) -> None:
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int) -> None:
        if not self.transport.is_closing():
            answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
            if self.waits_for_client and not answering:
                self.transport.write(STATUS_LINE[status] + b"connection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    def _close_longest_waiting(self) -> None:
        others = [one for one in self.connections if isinstance(one, LimitedConnection) and one.waits_for_client]
        longest = min(others, key=lambda one: one._since, default=self)
        self.connections.discard(longest)
        longest.transport.abort()
