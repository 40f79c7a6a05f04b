"""The driver: begins jobs in order as permits become free, bounds what runs, and ends everything at the first failure.

`Driver` runs any work of rollouts on this event loop: `Environment.generate`, evaluation during training. `LocalRunner`
runs the jobs of evaluations with it; `workers/pool.py` runs the same jobs in processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Protocol, Self

from whet.rollouts.jobs import AnyClient, JobSource, Parts, RolloutJob, Sink, run_job
from whet.rollouts.limits import Limit, SharedLimit
from whet.rollouts.pace import LoopPace, paced
from whet.system.cancellation import cancel

MANY = 1024  # rollouts in flight from which on the garbage collector delays all others
BEGUN_AT_ONCE = 16  # groups begun before other tasks of the event loop run, where no limit is set


class Driver:
    """Work on this event loop. Leaving its context cancels what is still running."""

    def __init__(self, *, pace: bool = False, calm: bool = False) -> None:
        """With `pace`, no rollouts keep the others waiting for long; with `calm`, nor does the garbage collector.

        No pace for models of this process: there the order in which rollouts continue decides what the engine computes
        together, and a clock must not decide that.
        """
        self._paces, self._calm = pace, calm
        self._pace: LoopPace | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._begun = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._calm:
            await self._stack.enter_async_context(calm_collector())
        if self._paces:
            self._pace = self._stack.enter_context(paced())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(self._tasks)
        await self._stack.aclose()

    async def begin(self, work: Coroutine[Any, Any, None], limit: Limit | None = None) -> None:
        """Begin `work` once `limit` has a free permit. Raises the failure that ended earlier work."""
        try:
            if limit is not None:
                async with limit:  # after the rollouts of earlier work
                    pass
            self.check()
        except BaseException:
            work.close()
            raise
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        self._begun += 1
        if limit is not None or self._begun % BEGUN_AT_ONCE == 0:  # it takes its permit before the next requests one
            await (self._pace.turn() if self._pace is not None and self._pace.spent() else asyncio.sleep(0))

    async def drain(self) -> None:
        """Returns once all work is done; raises like `begin`."""
        while self._tasks and self._failure is None:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        self.check()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()
            for other in self._tasks:
                other.cancel()


class JobRunner(Protocol):
    """Runs the jobs of several sources, of each as many rollouts at once as it allows."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None:
        """Cancel what is running."""

    async def begin(self, source: int) -> None:
        """Prepare what a source needs. Raises `WhetError` where its model cannot be had."""

    async def submit(self, job: RolloutJob) -> None:
        """Returns once the job has a slot. Raises the error that ended an earlier job."""

    async def drain(self) -> None:
        """Returns once every job is done; raises like `submit`."""

    async def end(self, source: int) -> None:
        """Nothing more comes of a source: what only it needed is closed."""


class LocalRunner:
    """Runs jobs in this process, for evaluations that are not large; a `JobRunner`."""

    def __init__(self, sources: Sequence[JobSource], parts: Parts, sink: Sink) -> None:
        self._sources, self._parts, self._sink = sources, parts, sink
        permits = SharedLimit()
        self._recipes = [source.recipe for source in sources]
        self._limits = [permits.up_to(source.max_concurrent) for source in sources]
        most = max((source.max_concurrent for source in sources), default=0)
        self._driver = Driver(pace=not any(source.local for source in sources), calm=most >= MANY)

    async def __aenter__(self) -> Self:
        await self._driver.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._driver.__aexit__()

    async def begin(self, source: int) -> None:
        await self._parts.client(source)

    async def submit(self, job: RolloutJob) -> None:
        await self._driver.begin(self._run(job, await self._parts.client(job.source)), self._limits[job.source])

    async def drain(self) -> None:
        await self._driver.drain()

    async def end(self, source: int) -> None:
        await self._parts.release(source)

    async def _run(self, job: RolloutJob, client: AnyClient) -> None:
        source = self._sources[job.source]
        row, limit = source.tasks[job.task], self._limits[job.source]
        self._sink.rollouts(job, await run_job(job, source.env, client, self._recipes[job.source], row, limit))


# Python's garbage collector while very many objects are alive at once.
#
# A collection of the oldest generation visits every object there is: with thousands of rollouts in flight, millions of
# messages, states and coroutines, for a third of a second and again and again. Nearly none of them is garbage, and what
# is, is freed by its reference count. So within `calm_collector()`, what has survived one collection is not visited
# again (`gc.freeze`): a short collection every `STEP_S` visits only new objects, and takes milliseconds.
#
# What that misses are cycles that become garbage after they have survived. They are collected at the end, or as soon as
# the process has grown so much that they could be why. Python 3.14 and later collect in increments by themselves.

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
