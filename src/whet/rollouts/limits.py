"""Concurrency: how many rollouts generate at once, and waiting for several of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def rollout_limit(max_concurrent: int | None) -> asyncio.Semaphore | None:
    """One place per rollout; None where there is no limit (-1, 0 or None)."""
    return asyncio.Semaphore(max_concurrent) if max_concurrent is not None and max_concurrent > 0 else None


async def gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. When one fails or this is cancelled, the others are cancelled and waited for first."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
