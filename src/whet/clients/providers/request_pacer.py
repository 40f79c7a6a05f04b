"""Starts requests one after the other, so that the first is sent before the last is written.

Preparing a request takes processor time, in a few turns of the event loop. Thirty requests that begin in one turn share
those turns, and each is sent when the last of them is nearly ready: until then the endpoint is idle, and then it
receives all of them at once. With a pacer they begin one by one, `TURNS` apart.

Where the loop's turns are long, because hundreds of answers arrived or a reward function computes, more requests begin
at once: as many as take about as long as the other work of the loop. So neither requests nor other work wait for long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

TURNS = 2
"""Turns of the event loop until a request is sent."""
REQUEST_S = 0.001
"""Processor time until a request is sent, roughly."""


class RequestPacer:
    """Each request awaits `enter()` before it begins."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # while requests wait for its turns
        self._waits_since = 0.0

    async def enter(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # none wait, or only those of a loop that has ended
            self._waiting.clear()
            self._hold(loop)
            return
        slot = loop.create_future()
        self._waiting.append(slot)
        await slot

    def _hold(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._waits_since = loop, time.perf_counter()
        loop.call_soon(self._turn, loop, TURNS - 1)

    def _turn(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        if left:
            loop.call_soon(self._turn, loop, left - 1)
        elif self._let_in(max(1, int((time.perf_counter() - self._waits_since) / REQUEST_S))):
            self._hold(loop)
        else:
            self._loop = None

    def _let_in(self, most: int) -> int:
        entered = 0
        while self._waiting and entered < most:
            slot = self._waiting.popleft()
            if not slot.done():  # else its request was cancelled
                slot.set_result(None)
                entered += 1
        return entered
