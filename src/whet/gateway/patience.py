"""How long a server waits for a request: for its head, and for its body at least at a lowest rate.

uvicorn waits for ever. A client that sends a byte now and then would hold its connection, and what was read so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from whet.system.peer_timeout import LOOK_S

HEAD_S = 10.0
BODY_S = 60.0
SLOWEST = 16 << 10
"""Bytes a second that a body may need longer than `BODY_S` for."""
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Patience:
    """Calls `refuse` once the client has let the server wait too long; `is_paused` says that the server does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, refuse: Callable[[], None], is_paused: Callable[[], bool]):
        self._loop, self._refuse, self._is_paused = loop, refuse, is_paused
        self._what: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0

    def wait_for(self, what: object, seconds: float = 0.0) -> None:
        """Wait for `what`, which is something else than before or what is waited for already; None: for nothing."""
        if what is self._what:
            return
        self._what = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what is not None:
            self._until = self._loop.time() + seconds
            self._timer = self._loop.call_at(self._until, self._look)

    def received(self, size: int) -> None:
        self._until += size / SLOWEST

    def _look(self) -> None:
        now = self._loop.time()
        assert self._timer is not None
        stood_still = now - self._timer.when() > LOOK_S  # what has arrived meanwhile is read first
        if now < self._until or self._is_paused() or stood_still:
            self._timer = self._loop.call_at(max(self._until, now + 1.0), self._look)
        else:
            self._refuse()


class PatientConnection(H11Protocol):
    """uvicorn's connection with h11, with both limits."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._patience = Patience(self.loop, self._refuse, lambda: self.flow.read_paused)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.wait_for(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()
        if self.conn.their_state is h11.SEND_BODY:
            self._patience.received(len(data))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        waits = {h11.IDLE: HEAD_S, h11.SEND_BODY: BODY_S}
        state = self.conn.their_state
        self._patience.wait_for(state if state in waits else None, waits.get(state, 0.0))

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(TOO_SLOW)
            self.transport.close()
