"""Cooperative scheduling of many rollouts on one event loop, so that none blocks the others for long.

    ready ──slice not used up──▶ continues at once
      └─────slice used up──────▶ queued in order of arrival ──a few in each turn of the loop──▶ continues

A rollout runs from a response to its next request. Where thousands of responses arrive at the same moment, one turn of
the event loop would run all of their rollouts first: a pause of seconds in which no response is received, no timeout
fires and no progress is shown. Here a turn of the loop runs rollouts for `SLICE_S`; the others wait in a queue.

Only `generate` paces its rollouts. Training does not: there the order of rollouts must not depend on a clock.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SLICE_S = 0.004  # of one turn of the event loop, for rollouts
MOST_RELEASED = 32  # in one turn of the loop


class LoopPace:
    """Divides the time of one event loop. A rollout checks `spent()` regularly, and awaits `turn()` if it is true."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slice_end = 0.0
        self._loop_has_turned = True
        self._parked: deque[asyncio.Future[None]] = deque()
        self._released = MOST_RELEASED

    def belongs_here(self) -> bool:
        """Whether it is of the running event loop."""
        return self._loop is asyncio.get_running_loop()

    def spent(self) -> bool:
        """Whether this turn of the event loop has done enough, or others wait in line."""
        if self._parked:
            return True
        now = time.perf_counter()
        if now < self._slice_end:
            return False
        if not self._loop_has_turned:
            return True
        self._begin_slice(now)
        return False

    async def turn(self) -> None:
        """Wait until all earlier rollouts have continued."""
        waiter = self._loop.create_future()
        self._parked.append(waiter)
        if self._loop_has_turned:  # no running task would look at the line
            self._begin_slice(time.perf_counter())
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.done():
                waiter.cancel()
            raise

    def _begin_slice(self, now: float) -> None:
        self._slice_end = now + SLICE_S
        self._loop_has_turned = False
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Runs in the turn of the loop after the one in which the slice began."""
        if not self._parked:
            self._loop_has_turned = True
            return
        now = time.perf_counter()
        took = now - self._slice_end + SLICE_S
        # What one rollout does before it waits again may take microseconds or, with slow code of its environment,
        # milliseconds: learned from how long the last turn of the loop took.
        self._released = max(1, self._released // 2) if took > SLICE_S else min(MOST_RELEASED, self._released + 4)
        for _ in range(min(self._released, len(self._parked))):
            waiter = self._parked.popleft()
            if not waiter.done():
                waiter.set_result(None)
        self._begin_slice(now)


_current: ContextVar[LoopPace | None] = ContextVar("whet_pace", default=None)


def current_pace() -> LoopPace | None:
    """The pace that the rollouts of this task keep; None where they keep none."""
    return _current.get()


@contextmanager
def paced() -> Iterator[LoopPace]:
    """Every task that is begun within keeps one pace."""
    pace = _current.get()
    if pace is None or not pace.belongs_here():
        pace = LoopPace()
    token = _current.set(pace)
    try:
        yield pace
    finally:
        _current.reset(token)
