"""Worker processes: started, given jobs, replaced when they die, ended.

Each has a share of the rollouts that may be in flight, its own environments and its own connections. A model that runs
here stays here, and answers requests of the workers. Dataset rows are sent with their jobs, so that all workers run
the same tasks even where an environment makes them up.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from whet.clients.client import Client
from whet.errors import ConfigError, RunError, WorkerDiedError
from whet.rollouts.jobs import Finished, JobSource, Parts, RolloutJob, Sink
from whet.rollouts.states import failed_state
from whet.rollouts.workers.assignment import JobQueue, shares
from whet.rollouts.workers.channel import BrokenFrameError, error_from_words, read_head
from whet.rollouts.workers.child import Child, is_picklable
from whet.rollouts.workers.parent_model import ParentModels
from whet.rollouts.workers.process import Orders
from whet.types import RolloutOutput

READY_S = 120.0  # for a worker to load its environments, and ten times as long as that took here
STUCK_S = 60.0  # beyond the time limit of rollouts, without a sign of life
CLOSE_S = 10.0  # for workers to clean up and end after `stop`
STARTS_AT_MOST = 3  # in a row of which none got ready
IDLE_DEATHS_AT_MOST = 5  # in a row, of workers that had nothing to do


class WorkerPool:
    """Runs rollouts in processes of their own; a `Runner`."""

    def __init__(
        self,
        sources: Sequence[JobSource],
        workers: Sequence[int],
        parts: Parts,
        make_parts: Callable[[], Parts],
        sink: Sink,
        *,
        load_s: float = 0.0,
    ) -> None:
        """The jobs of `sources`, those of each on its first so many of `workers`.

        `make_parts` is called in each worker, for environments and clients of its own; `parts` has the models that run
        in this process. `load_s` is how long it took to load the environments here.
        """
        self._sources, self._parts, self._make_parts, self._sink = sources, parts, make_parts, sink
        self._recipes = [source.recipe for source in sources]
        self._processes = max(workers)
        self._limits = [
            shares(source.max_concurrent, count, self._processes)
            for source, count in zip(sources, workers, strict=True)
        ]
        self._ready_s = READY_S + 10 * load_s
        # With a time limit, a worker whose event loop does not turn has broken it; without, it may take its time.
        timeouts = [recipe.timeout for recipe in self._recipes if recipe.timeout is not None]
        self._stuck_s = STUCK_S + max(timeouts) if len(timeouts) == len(self._recipes) else None
        self._queue = JobQueue(self._limits)
        self._models = ParentModels(parts)
        self._children: dict[int, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()
        self._moved = asyncio.Event()
        self._failure: BaseException | None = None
        self._idle_deaths = 0
        self._closing = False

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._keepers = [loop.create_task(self._keep(number)) for number in range(self._processes)]
        for keeper in self._keepers:
            keeper.add_done_callback(self._kept)
        return self

    async def begin(self, source: int) -> None:
        if self._sources[source].local:  # loading it is no part of the time of the first rollout
            await self._parts.client(source)

    async def submit(self, job: RolloutJob) -> None:
        self._queue.add(job)
        self._give_out()
        await self._until(lambda: self._queue.accepts)

    async def drain(self) -> None:
        await self._until(lambda: not self._queue and not any(child.given for child in self._children.values()))

    async def _until(self, holds: Callable[[], bool]) -> None:
        while self._failure is None and not holds():
            self._moved.clear()
            await self._moved.wait()
        if self._failure is not None:
            raise self._failure

    async def end(self, source: int) -> None:
        await self._parts.release(source)

    async def __aexit__(self, *exc: object) -> None:
        self._closing = True
        for child in self._children.values():
            if child.ready and child.channel is not None:
                child.channel.send_object(("stop",))
            else:
                child.kill()
        await self._models.forget_all()
        if self._keepers:
            _, late = await asyncio.wait(self._keepers, timeout=CLOSE_S)
            for child in self._children.values() if late else ():
                child.kill()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._models.close()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._moved.set()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._fail(error)

    def _give_out(self) -> None:
        """Give jobs to workers while one has room for the first of them."""
        while not self._closing and (found := self._queue.next(list(self._children.values()))) is not None:
            job, child = found
            row = self._sources[job.source].tasks[job.task]
            try:
                child.give(next(self._numbers), job, row)
            except Exception as error:  # pickle raises whatever the objects of the row raise
                self._fail(self._cannot_send(job, row, error))
                return
        self._moved.set()

    def _cannot_send(self, job: RolloutJob, row: Mapping[str, Any], error: Exception) -> ConfigError:
        column = next((name for name, value in row.items() if is_picklable(value)), "?")
        name = self._sources[job.source].label
        return ConfigError(
            f"environment {name}: task {row.get('example_id')} has a column '{column}' that cannot be sent to a worker "
            f"process ({error}). Run it in this process: --workers 1."
        )

    # One slot for a worker, and the workers that take it in turn

    async def _keep(self, number: int) -> None:
        """Keep a worker there until the session is closed. Raises where that cannot be done."""
        starts = 0
        while not self._closing:
            child = self._children[number] = Child(number)
            try:
                await self._talk(child)
            finally:
                child.ready = False
                await child.end()
                await self._models.lost(child)
            if self._closing:
                return
            starts = 0 if child.was_ready else starts + 1
            if starts >= STARTS_AT_MOST:
                raise RunError(
                    f"worker processes do not get ready ({child.fate}). Run the rollouts in this process: --workers 1."
                )
            self._replace_jobs(child)

    async def _talk(self, child: Child) -> None:
        """Send it its orders and handle its messages, until it has ended."""
        channel = await child.connect()
        number = child.number
        limits = [limits[number] for limits in self._limits]
        beat_s = None if self._stuck_s is None else self._stuck_s / 6
        local = [source.local for source in self._sources]
        channel.send_object(Orders(self._make_parts, self._recipes, local, limits, beat_s))
        started = time.monotonic()
        while True:
            try:
                left_s = self._stuck_s if child.ready else self._ready_s - (time.monotonic() - started)
                async with asyncio.timeout(left_s):
                    frame = await channel.receive()
                if frame is None:
                    return
                head, body = read_head(frame)
                self._handle(child, head, body)
            except TimeoutError:
                child.complaint = (
                    f"stuck for {self._stuck_s:.0f} s" if child.ready else f"not ready after {self._ready_s:.0f} s"
                )
            except BrokenFrameError as error:
                child.complaint = f"sent what is no message: {error}"
            if child.complaint is not None:
                child.kill()
                return

    def _handle(self, child: Child, head: dict[str, Any], body: bytes) -> None:
        kind = head["kind"]
        if kind == "rows":
            self._take(child, head["job"], head["indices"], body)
        elif kind == "freed":
            child.freed(head["job"])
        elif kind in ("ask", "forget", "release"):
            self._models.handle(child, head, body)
            return
        elif kind == "ready":
            child.ready = child.was_ready = True
        elif kind == "mistake":
            self._fail(error_from_words(*head["error"]))
        elif kind == "bug":
            self._fail(RuntimeError(f"a worker failed:\n{head['traceback']}"))
        self._give_out()

    def _take(self, child: Child, number: int, indices: Sequence[int], body: bytes) -> None:
        job = child.done(number)
        lines = body.splitlines(keepends=True)
        if tuple(indices) != job.indices or len(lines) != len(indices):
            raise BrokenFrameError(f"{len(lines)} rows of {len(job.indices)} rollouts")
        rows = [RolloutOutput(json.loads(line)) for line in lines]
        self._done(job, [Finished(*one) for one in zip(indices, rows, lines, strict=True)])

    def _done(self, job: RolloutJob, found: Sequence[Finished]) -> None:
        self._queue.done(job)
        self._idle_deaths = 0
        self._sink.rollouts(job, found)

    # Deaths of workers

    def _replace_jobs(self, child: Child) -> None:
        """Have the jobs of a dead worker run again, except one that caused its death."""
        jobs = child.abandoned()
        caused = self._queue.worker_died(jobs)
        rollouts = sum(len(job.indices) for job in jobs if job not in caused)
        what = f"{rollouts} rollout{'s are' if rollouts != 1 else ' is'} run again" if rollouts else "nothing was lost"
        self._sink.note(f"worker {child.number + 1} {child.fate}; it is replaced, and {what}")
        if child.was_ready:
            self._idle_deaths = 0 if jobs else self._idle_deaths + 1
        if self._idle_deaths >= IDLE_DEATHS_AT_MOST:
            raise RunError(
                f"worker processes die while they have nothing to do ({child.fate}). "
                "Run the rollouts in this process: --workers 1."
            )
        for job in caused:
            self._done(job, [self._error_row(job, index, child) for index in job.indices])
        self._give_out()

    def _error_row(self, job: RolloutJob, index: int, child: Child) -> Finished:
        recipe = self._recipes[job.source]
        row = self._sources[job.source].tasks[job.task]
        deaths = self._queue.deaths(job)
        error = WorkerDiedError(f"the worker died {deaths} times on this rollout; the last one was {child.fate}")
        sampling = recipe.sampling_of(row["example_id"], index)
        unused: Client[Any, Any, Any, Any] = Client(None)  # the rollout has ended
        state = failed_state(row, unused, recipe.model, sampling, error)
        return Finished.of(index, recipe.output(state))
