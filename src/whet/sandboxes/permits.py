"""How many sandboxes may run at once, and which owner gets the next slot: round robin over the owners that wait.

`FairQueue` decides, without any I/O. `Permits` is the cap: one object may serve several event loops on several threads,
which is how all environments of a process share one (see `pool.shared_pool`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

RECLAIM_S = 5.0  # how often a waiter looks for slots whose event loop ended without releasing them

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Owners take turns; within an owner, first come first served.

    An owner that pushes a thousand items delays another's only item by one turn, not by a thousand.
    """

    def __init__(self) -> None:
        self._turns: OrderedDict[Hashable, deque[T]] = OrderedDict()  # the next owner first; no queue is empty

    def __len__(self) -> int:
        return sum(map(len, self._turns.values()))

    def push(self, owner: Hashable, item: T) -> None:
        self._turns.setdefault(owner, deque()).append(item)

    def pop(self) -> T | None:
        """The item whose turn it is, or None."""
        if not self._turns:
            return None
        owner, items = self._turns.popitem(last=False)
        item = items.popleft()
        if items:
            self._turns[owner] = items
        return item

    def discard(self, owner: Hashable, item: T) -> None:
        """Forget an item that gave up waiting."""
        items = self._turns.get(owner)
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._turns[owner]


@dataclass(eq=False, slots=True)
class Permit:
    """The right to one sandbox, held by an event loop once it is granted."""

    loop: asyncio.AbstractEventLoop
    granted: asyncio.Future[None]
    abandoned: Callable[[], None] | None = None  # called, on any thread, when the loop ended and never gave it back


class Permits:
    """At most `limit` slots taken at once, over all threads and event loops of the process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._taken: set[Permit] = set()
        self._queue: FairQueue[Permit] = FairQueue()

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def taken(self) -> int:
        return len(self._taken)

    @property
    def waiting(self) -> int:
        with self._lock:
            return len(self._queue)

    def resize(self, limit: int) -> None:
        """A larger limit admits waiters at once; a smaller one ends nothing and applies from the next slot on."""
        with self._lock:
            self._limit = limit
            self._grant()

    async def take(self, owner: Hashable = None) -> Permit:
        """A slot, once it is this owner's turn. Cancelling passes the turn to the next."""
        loop = asyncio.get_running_loop()
        permit = Permit(loop, loop.create_future())
        with self._lock:
            self._queue.push(owner, permit)
            self._grant()
        try:
            while not permit.granted.done():
                await asyncio.wait({permit.granted}, timeout=RECLAIM_S)
                self._reclaim()
        except BaseException:
            with self._lock:
                self._queue.discard(owner, permit)
            self.give_back(permit)
            raise
        return permit

    def give_back(self, permit: Permit) -> None:
        """Free a slot; idempotent."""
        with self._lock:
            self._taken.discard(permit)
            self._grant()

    def _grant(self) -> None:
        """With the lock held: assign free slots to the owners whose turn it is."""
        while len(self._taken) < self._limit:
            permit = self._queue.pop()
            if permit is None:
                return
            try:
                permit.loop.call_soon_threadsafe(_settle, permit.granted)
            except RuntimeError:  # its loop has ended while it waited
                continue
            self._taken.add(permit)

    def _reclaim(self) -> None:
        """Reclaim slots of event loops that have ended and cannot release them."""
        with self._lock:
            lost = [permit for permit in self._taken if permit.loop.is_closed()]
        for permit in lost:
            if permit.abandoned is not None:
                permit.abandoned()
            self.give_back(permit)


def _settle(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)
