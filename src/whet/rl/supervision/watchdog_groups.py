"""The deadline of one group of rollouts: past it, the group is cancelled and counts as errored, so it is replaced."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from whet.errors import RolloutTimeoutError
from whet.rl.supervision.watchdog import GROUP, Wait
from whet.rl.supervision.watchdog_thread import Watchdog


@dataclass(slots=True)
class GroupLimit:
    """Slots for the rollouts of one group, out of those of all groups; the group's time begins with its first one."""

    places: asyncio.Semaphore
    rollouts: int
    clock: Callable[[], float]
    wait: Wait
    on_begin: Callable[[], None] | None = None
    begun: int = 0
    ended: int = 0

    async def __aenter__(self) -> None:
        await self.places.acquire()
        self.begun += 1
        if self.begun == 1:
            self.wait.began = self.clock()
            if self.on_begin is not None:
                self.on_begin()

    async def __aexit__(self, *_: object) -> None:
        self.ended += 1
        self.places.release()

    def describe(self) -> str:
        """What is not over yet."""
        if self.ended == self.rollouts:
            return "its rollouts have ended, their scoring has not"
        return f"{self.rollouts - self.ended} of {self.rollouts} rollouts have not ended"


@asynccontextmanager
async def watched_group(
    watchdog: Watchdog,
    places: asyncio.Semaphore,
    *,
    number: int,
    environment: str,
    example_id: object,
    rollouts: int,
    on_begin: Callable[[], None] | None = None,
) -> AsyncIterator[GroupLimit]:
    """What happens within is one group. Raises `RolloutTimeoutError` where the watchdog has ended it."""
    timeout = asyncio.timeout(None)
    reason = ""

    def end(message: str) -> None:
        nonlocal reason
        reason = message
        with suppress(RuntimeError):  # it has just ended by itself
            timeout.reschedule(asyncio.get_running_loop().time())

    awaited = f"environment {environment}, task {example_id}"
    with watchdog.waiting(f"{GROUP}{environment}", f"group {number}", awaited, act=end) as wait:
        wait.began = math.inf  # waiting for a slot is not a stall
        limit = GroupLimit(places, rollouts, watchdog.clock, wait, on_begin)
        wait.detail = limit.describe
        try:
            async with timeout:
                yield limit
        except TimeoutError:
            if not timeout.expired():
                raise
            watchdog.waits.expired[wait.kind] += 1
            if watchdog.waits.hopeless(wait.kind):
                watchdog.stop(f"{reason}; no group of this environment has ever ended")
            raise RolloutTimeoutError(reason) from None
