"""When an event loop has nothing left to do but wait: all its tasks have run as far as they can.

Who computes on the loop's own thread needs to know that all that follows from its last results has happened, however
many turns of the loop it took. Code that took no turn more or less may then not decide what is computed together.
What is outside of the loop, such as a thread or a timer, does not count; `outside` may name some that do.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

LOOK_S = 1.0  # between two looks at what is outside, where nothing wakes the loop
MOST_TURNS = 10_000  # of a loop in which a task spins, after which its wait counts as over

_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Quiet] = WeakKeyDictionary()


class Quiet:
    """The quiet moments of one event loop."""

    def __init__(self) -> None:
        self.outside: Callable[[], bool] | None = None  # whether something outside of the loop is still at work
        self.on_idle: Callable[[], bool] | None = None  # called then; whether it has done anything
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}

    @staticmethod
    def here() -> Quiet | None:
        """Of the running loop; None where `new_loop` has not made it."""
        return _of_loops.get(asyncio.get_running_loop())

    async def wait(self, rank: int) -> None:
        """Until the loop is idle, and all who wait with a lower rank have done all they can."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(rank, []).append(reached)
        while not reached.done():
            await asyncio.wait({reached}, timeout=LOOK_S)

    def idle(self) -> bool:
        """Called where the loop would sleep. Whether something is to be done instead."""
        if self.on_idle is not None and self.on_idle():
            return True
        if not self._waiting or (self.outside is not None and self.outside()):
            return False
        for reached in self._waiting.pop(min(self._waiting)):
            if not reached.done():
                reached.set_result(None)
        return True

    @property
    def awaited(self) -> bool:
        return bool(self._waiting)


class QuietSelector(selectors.DefaultSelector):
    """The selector of a loop, which gets a time to sleep where nothing is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = Quiet()
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        sleeps = timeout is None or timeout > 0
        self._turns = 0 if sleeps else self._turns + 1
        if sleeps:
            ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
            if ready or self.quiet.idle():
                return ready
        elif self._turns > MOST_TURNS and self.quiet.awaited:
            self._turns = 0
            self.quiet.idle()
        return super().select(timeout)


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose quiet moments can be awaited."""
    selector: Any = QuietSelector()
    loop = asyncio.SelectorEventLoop(selector)
    _of_loops[loop] = selector.quiet
    return loop
