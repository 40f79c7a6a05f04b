"""How long another program may let this one wait, in time in which this one could have read what it wrote.

A loop in which a model computes, or a machine that is busy, stands still for longer than such a limit, and asyncio's
timeouts have then passed before what has arrived is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

LOOK_S = 1.0
"""A pause of the loop counts as this much at most."""


@contextlib.asynccontextmanager
async def peer_timeout(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the block once the loop has run for that long."""
    loop = asyncio.get_running_loop()
    left = seconds

    def look() -> None:
        nonlocal left
        left -= LOOK_S
        if left <= 0:
            scope.reschedule(loop.time())
        else:
            timers.append(loop.call_later(min(LOOK_S, left), look))

    async with asyncio.timeout(None) as scope:
        timers = [loop.call_later(min(LOOK_S, left), look)]
        try:
            yield
        finally:
            timers[-1].cancel()
