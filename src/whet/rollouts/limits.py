"""Concurrency: how many rollouts generate at once, and waiting for several of them together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

from whet.system.cancellation import cancel

T = TypeVar("T")
Limit: TypeAlias = AbstractAsyncContextManager[Any, bool | None]
"""Entered while a rollout holds a permit: a semaphore, or `SharedLimit.up_to(n)`."""


class SharedLimit:
    """A limit that several evaluations share, each up to its own limit, in order of arrival.

    A request waits until fewer permits are taken than its limit, and until all earlier requests are served. So a later
    evaluation uses the permits that an earlier one leaves free, and never overtakes it.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    def up_to(self, number: int) -> Limit:
        return _UpTo(self, number)

    async def take(self, number: int) -> None:
        if self.taken < number and not self._line:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append((number, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # the permit was granted before the cancellation
            else:
                with contextlib.suppress(ValueError):  # no longer in the queue
                    self._line.remove((number, turn))
                self._serve()
            raise

    def give_back(self) -> None:
        self.taken -= 1
        self._serve()

    def _serve(self) -> None:
        while self._line and self.taken < self._line[0][0]:
            _, turn = self._line.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)


class _UpTo:
    __slots__ = ("_number", "_permits")

    def __init__(self, permits: SharedLimit, number: int) -> None:
        self._permits, self._number = permits, number

    async def __aenter__(self) -> None:
        await self._permits.take(self._number)

    async def __aexit__(self, *_: object) -> None:
        self._permits.give_back()


def rollout_limit(max_concurrent: int | None) -> asyncio.Semaphore | None:
    """One permit per rollout; None where there is no limit (-1, 0 or None)."""
    return asyncio.Semaphore(max_concurrent) if max_concurrent is not None and max_concurrent > 0 else None


async def gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. When one fails or this is cancelled, the others are cancelled, and waited for briefly."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await cancel(tasks)
        raise


async def to_the_end(work: Awaitable[T]) -> T:
    """Await `work` even where the caller is cancelled meanwhile; the cancellation is raised once it is done."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if not task.done():
                cancelled = error
        except Exception:
            break  # its own failure; `result` below raises it
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the cancellation goes first
        raise cancelled
    return task.result()
