"""Requests begin one after the other, so that the first is on its way before the last is written.

What a request takes before it is on the wire is processor time, in a few turns of the event loop. Thirty that begin in
one turn take those turns together, and each is sent when the last of them is nearly ready: until then the endpoint has
nothing to do, and then it is asked for all at once. Here they enter one by one, `TURNS` apart.

Where the loop's turns are long, because hundreds of answers have come or a reward function computes, more enter at
once: as many as take about as long as the rest of the loop's work did. So nobody waits for long, nor does the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

TURNS = 2
"""Turns of the event loop in which a request gets onto the wire."""
REQUEST_S = 0.001
"""What a request takes of the event loop's time until then, roughly."""


class Door:
    """Each request awaits `enter()` before it begins."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # whose next turns open the door; None while it is open
        self._shut_at = 0.0

    async def enter(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # open, or shut by a loop that has ended
            self._waiting.clear()
            self._shut(loop)
            return
        place = loop.create_future()
        self._waiting.append(place)
        await place

    def _shut(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._shut_at = loop, time.perf_counter()
        loop.call_soon(self._turn, loop, TURNS - 1)

    def _turn(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        if left:
            loop.call_soon(self._turn, loop, left - 1)
        elif self._let_in(max(1, int((time.perf_counter() - self._shut_at) / REQUEST_S))):
            self._shut(loop)
        else:
            self._loop = None

    def _let_in(self, most: int) -> int:
        entered = 0
        while self._waiting and entered < most:
            place = self._waiting.popleft()
            if not place.done():  # else its request was cancelled
                place.set_result(None)
                entered += 1
        return entered
