"""The driver: begins jobs in order as permits become free, bounds what runs, and ends everything at the first failure.

`Driver` runs any work of rollouts on this event loop: `Environment.generate`, evaluation during training. `LocalRunner`
runs the jobs of evaluations with it; `workers/pool.py` runs the same jobs in processes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol, Self

from whet.rollouts.garbage import calm_collector
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


class Runner(Protocol):
    """Runs the jobs of several sources, of each as many rollouts at once as it allows."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None:
        """Cancel what is running."""
        ...

    async def begin(self, source: int) -> None:
        """Prepare what a source needs. Raises `WhetError` where its model cannot be had."""
        ...

    async def submit(self, job: RolloutJob) -> None:
        """Returns once the job has a slot. Raises the error that ended an earlier job."""
        ...

    async def drain(self) -> None:
        """Returns once every job is done; raises like `submit`."""
        ...

    async def end(self, source: int) -> None:
        """Nothing more comes of a source: what only it needed is closed."""
        ...


class LocalRunner:
    """Runs jobs in this process, for evaluations that are not large; a `Runner`."""

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
