"""Worker processes: started, given jobs, replaced when they die, ended.

Each has a share of the rollouts that may be in flight, its own environments and its own connections. A model that runs
here stays here, and answers requests of the workers. Dataset rows are sent with their jobs, so that all workers run
the same tasks even where an environment makes them up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from whet.calls import describe
from whet.clients.client import Client
from whet.clients.usage import charge_spent
from whet.errors import ConfigError, RunError, WorkerDiedError
from whet.rollouts.jobs import Finished, JobSource, Parts, RolloutJob, Sink
from whet.rollouts.limits import Limit
from whet.rollouts.states import failed_state
from whet.rollouts.workers.assignment import JobQueue, own_workers, shares
from whet.rollouts.workers.awaited import AwaitedJobs
from whet.rollouts.workers.child import Child, is_picklable, read_head
from whet.rollouts.workers.parent_model import ParentModels
from whet.rollouts.workers.process import Orders
from whet.rollouts.workers.started import LocalProcess, Starter
from whet.rollouts.workers.state_record import state_of_line
from whet.system.cancellation import GRACE_S
from whet.system.channel import BrokenFrameError, error_from_words
from whet.types import RolloutOutput, State

READY_S = 120.0  # for a worker to load its environments, and ten times as long as that took here
STUCK_S = 60.0  # beyond the time limit of rollouts, without a sign of life
CLOSE_S = 10.0  # for workers to clean up and end after `stop`
STARTS_AT_MOST = 3  # in a row of which none got ready
IDLE_DEATHS_AT_MOST = 5  # in a row, of workers that had nothing to do
PATIENCE_S = 30.0  # for a worker that computes, before others go on without what it does
CANCEL_S = 0.8 * GRACE_S  # for a worker to hear that a job is cancelled


class WorkerPool:
    """Runs rollouts in processes of their own; a `JobRunner`."""

    def __init__(
        self,
        sources: Sequence[JobSource],
        workers: Sequence[int],
        parts: Parts,
        make_parts: Callable[[], Parts],
        sink: Sink,
        *,
        load_s: float = 0.0,
        apart: bool = False,
        in_order: bool = False,
        logs: bool = False,
        in_process: str = "--workers 1",
        start: Starter = LocalProcess,
    ) -> None:
        """The jobs of `sources`, those of each on its first so many of `workers`.

        Args:
            sources: what jobs name by index.
            workers: how many workers each source has.
            parts: the models that run in this process.
            make_parts: called in each worker, for environments and clients of its own.
            sink: receives the rows of jobs that are submitted, and notes.
            load_s: how long it took to load the environments here.
            apart: each source has workers of its own, in which others are not loaded, and its jobs take their permits
                from a limit of this process (`run`); else sources share workers, and each worker has a share of them.
            in_order: workers report when they have done all they can, for `at_work`.
            logs: what workers log and warn of is logged here; else it goes to standard error.
            in_process: what a user sets to have no workers.
            start: starts a worker, here or elsewhere.
        """
        self._sources, self._parts, self._make_parts, self._sink = sources, parts, make_parts, sink
        self._in_order, self._logs, self._in_process, self._start = in_order, logs, in_process, start
        self._recipes = [source.recipe for source in sources]
        self.processes = sum(workers) if apart else max(workers)
        self._limits = (
            own_workers([source.max_concurrent for source in sources], workers)
            if apart
            else [
                shares(source.max_concurrent, count, self.processes)
                for source, count in zip(sources, workers, strict=True)
            ]
        )
        self._awaited = AwaitedJobs()
        self._no_client: Client[Any, Any, Any, Any] = Client(None)  # of rollouts that have ended
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
        self._keepers = [loop.create_task(self._keep(number)) for number in range(self.processes)]
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

    async def run(self, job: RolloutJob, limit: Limit) -> list[State]:
        """The states of a job that is `whole`, whose rollouts take their permits from `limit`.

        Cancelled, it cancels the job in its worker; a worker that does not even hear that is replaced.
        """
        if self._failure is not None:
            raise self._failure
        states = self._awaited.begin(job, limit)
        self._queue.add(job)
        self._give_out()
        try:
            return await states
        except asyncio.CancelledError:
            await self._withdraw(job)
            raise
        finally:
            self._queue.withdraw(job)
            self._awaited.end(job)

    def at_work(self) -> bool:
        """Whether a worker has something to do for what it was sent, and has not been at it for long already.

        A worker that starts is at work where a job may wait for it.
        """
        if self._failure is not None:
            return False
        if self._queue and not all(child.ready for child in self._children.values()):
            return True
        return any(child.owes(PATIENCE_S) for child in self._children.values())

    async def _withdraw(self, job: RolloutJob) -> None:
        """Have a job end whose result is not wanted any more."""
        for child in self._children.values():
            wanted = ((number, one) for number, one in child.given.items() if one.job == job and one.over is None)
            number, given = next(wanted, (0, None))
            if given is None or child.channel is None:
                continue
            given.over, heard = asyncio.Event(), child.heard
            child.send("cancel", number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    await given.over.wait()
            if not given.over.is_set() and child.heard == heard and child.complaint is None:
                child.complaint = "kept its event loop and did not hear that a group was cancelled"
                child.kill()

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
                child.send("stop")
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
        self._awaited.fail(self._failure)
        self._moved.set()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._fail(error)

    def _give_out(self) -> None:
        """Give jobs to workers while one has room for the first of them."""
        while not self._closing and (assigned := self._queue.next(list(self._children.values()))) is not None:
            job, child = assigned
            row, number = self._sources[job.source].tasks[job.task], next(self._numbers)
            try:
                child.give(number, job, row)
            except Exception as error:  # pickle raises whatever the objects of the row raise
                self._fail(self._cannot_send(job, row, error))
                return
            self._awaited.given(job, partial(child.send, "enter", number))
        self._moved.set()

    def _cannot_send(self, job: RolloutJob, row: Mapping[str, Any], error: Exception) -> ConfigError:
        column = next((name for name, value in row.items() if is_picklable(value)), "?")
        name = self._sources[job.source].label
        return ConfigError(
            f"environment {name}: task {row.get('example_id')} has a column '{column}' that cannot be sent to a worker "
            f"process ({error}). Run it in this process: {self._in_process}."
        )

    # One slot for a worker, and the workers that take it in turn

    async def _keep(self, number: int) -> None:
        """Keep a worker there until the session is closed. Raises where that cannot be done."""
        starts = 0
        while not self._closing:
            child = self._children[number] = Child(number, self._start)
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
                    f"worker processes do not get ready ({child.fate}). Run the rollouts in this process: "
                    f"{self._in_process}."
                )
            self._replace_jobs(child)

    async def _talk(self, child: Child) -> None:
        """Send it its orders and handle its messages, until it has ended."""
        channel = await child.connect()
        number = child.number
        limits = [limits[number] for limits in self._limits]
        beat_s = None if self._stuck_s is None else self._stuck_s / 6
        local = [source.local for source in self._sources]
        orders = Orders(self._make_parts, self._recipes, local, limits, beat_s, self._in_order, self._logs)
        channel.send_object(orders)
        started = time.monotonic()
        while True:
            try:
                left_s = self._stuck_s if child.ready else self._ready_s - (time.monotonic() - started)
                async with asyncio.timeout(left_s):
                    frame = await channel.receive()
                if frame is None:
                    return
                head, body = read_head(frame)
                child.heard += 1
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
        elif kind == "states":
            self._take_states(child, head["job"], head["indices"], body)
        elif kind == "ended":
            if head["job"] in child.given:  # else it had ended by itself
                child.done(head["job"])
        elif kind == "freed":
            if (given := child.given.get(head["job"])) is not None:
                self._awaited.freed(given.job)
            child.freed(head["job"])
        elif kind == "settled":
            child.settled(head["frames"])
            return
        elif kind == "log":
            logging.getLogger(head["logger"]).log(head["level"], "%s", head["text"])
            return
        elif kind == "spent":
            charge_spent(head["cost"], head["unpriced_tokens"])
            return
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
        job = child.job(number).job
        lines = body.splitlines(keepends=True)
        if tuple(indices) != job.indices or len(lines) != len(indices):
            raise BrokenFrameError(f"{len(lines)} rows of {len(job.indices)} rollouts")
        rows = [RolloutOutput(json.loads(line)) for line in lines]
        child.done(number)
        self._done(job, [Finished(*one) for one in zip(indices, rows, lines, strict=True)])

    def _take_states(self, child: Child, number: int, indices: Sequence[int], body: bytes) -> None:
        given = child.job(number)
        if given.over is not None:
            child.done(number)
            return
        job, source, lines = given.job, self._sources[given.job.source], body.splitlines()
        if tuple(indices) != job.indices or len(lines) != len(indices):
            raise BrokenFrameError(f"{len(lines)} states of {len(job.indices)} rollouts")
        row, model = source.tasks[job.task], source.recipe.model
        try:
            states = [state_of_line(line, row, self._no_client, model, given.answers) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenFrameError(f"states that cannot be read ({describe(error)})") from None
        child.done(number)
        self._queue.done(job)
        self._idle_deaths = 0
        self._awaited.done(job, states)

    def _done(self, job: RolloutJob, rollouts: Sequence[Finished]) -> None:
        self._queue.done(job)
        self._idle_deaths = 0
        self._sink.rollouts(job, rollouts)

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
                f"Run the rollouts in this process: {self._in_process}."
            )
        for job in jobs:
            self._awaited.lost(job)
        for job in caused:
            states = [self._error_state(job, index, child) for index in job.indices]
            if job.whole:
                self._queue.done(job)
                self._awaited.done(job, states)
            else:
                output = self._recipes[job.source].output
                failed = zip(job.indices, states, strict=True)
                self._done(job, [Finished.of(index, output(state)) for index, state in failed])
        self._give_out()

    def _error_state(self, job: RolloutJob, index: int, child: Child) -> State:
        recipe = self._recipes[job.source]
        row = self._sources[job.source].tasks[job.task]
        deaths = self._queue.deaths(job)
        error = WorkerDiedError(f"the worker died {deaths} times on this rollout; the last one {child.fate}")
        sampling = recipe.sampling_of(row["example_id"] if job.name is None else job.name, index)
        return failed_state(row, self._no_client, recipe.model, sampling, error)
