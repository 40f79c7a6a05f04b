"""A request to stop, while a step is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from whet.system.cancellation import cancel

T = TypeVar("T")


class StopRequested(Exception):
    """A stop was requested; the step under way was abandoned before its weights changed."""


async def unless_stopped(stop: asyncio.Event, work: Awaitable[T]) -> T:
    """The result of `work`, unless `stop` is set first: then `work` is cancelled and `StopRequested` raised."""
    job = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({job, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise StopRequested
        return job.result()
    finally:
        stopped.cancel()
        await cancel([job])
