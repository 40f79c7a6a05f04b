"""Python's garbage collector while very many objects are alive at once.

A collection of the oldest generation visits every object there is: with thousands of rollouts in flight, millions of
messages, states and coroutines, for a third of a second and again and again. Nearly none of them is garbage, and what
is, is freed by its reference count. So within `calm_collector()`, what has survived one collection is not visited
again (`gc.freeze`): a short collection every `STEP_S` visits only new objects, and takes milliseconds.

What that misses are cycles that become garbage after they have survived. They are collected at the end, or as soon as
the process has grown so much that they could be why. Python 3.14 and later collect in increments by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

STEP_S = 0.02
GROWTH = 1.5  # of the process since the last full collection, after which there is another
GROWTH_BYTES = 512 << 20  # and by at least so much

_lock = threading.Lock()
_users = 0


@contextmanager
def what_is_loaded_stays() -> Iterator[None]:
    """No collection visits what is there now: libraries, models and datasets, for a third of a second each time."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@asynccontextmanager
async def calm_collector() -> AsyncIterator[None]:
    """Collect garbage in short steps. Does nothing where the program has frozen objects or switched collection off."""
    global _users
    with _lock:
        ours = sys.version_info < (3, 14) and gc.isenabled() and (_users > 0 or gc.get_freeze_count() == 0)
        _users += ours
    if not ours:
        yield
        return
    gc.freeze()
    steps = asyncio.create_task(_collect_in_steps())
    try:
        yield
    finally:
        steps.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await steps
        with _lock:
            _users -= 1
            if _users == 0:
                gc.unfreeze()


async def _collect_in_steps() -> None:
    size_at_full = peak_bytes()
    while True:
        await asyncio.sleep(STEP_S)
        size = peak_bytes()
        if full_is_due(size, size_at_full):
            size_at_full = size
            gc.unfreeze()
            gc.collect()
        else:
            gc.collect(0)
        gc.freeze()


def full_is_due(size: int, size_at_full: int) -> bool:
    """Whether so much has come since the last full collection that lost cycles may be a good part of it."""
    return size > size_at_full * GROWTH and size > size_at_full + GROWTH_BYTES


def peak_bytes() -> int:
    """The most memory this process has held so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
