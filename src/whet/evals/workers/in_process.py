"""Rollouts run in this process: for evaluations that are not large."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from whet.evals.model import Models
from whet.evals.workers.jobs import Attempted, RolloutJob, Sink, attempt
from whet.rollouts.garbage import calm_collector
from whet.rollouts.limits import Places
from whet.rollouts.pace import Pace, paced
from whet.system.cancellation import cancel

MANY = 1024  # rollouts in flight from which on the garbage collector delays all others


class InProcess:
    """Runs rollouts on this event loop; a `Runner`."""

    def __init__(
        self, evaluations: Sequence[Attempted], limits: Sequence[int], models: Models, sink: Sink, *, pace: bool
    ) -> None:
        """Of `evaluations`, each with at most its number of `limits` in flight.

        With `pace`, no rollouts keep the others waiting for long. Not for models of this process: there the order in
        which rollouts continue decides what the engine computes together, and a clock must not decide that.
        """
        self._evaluations, self._limits, self._models, self._sink = evaluations, limits, models, sink
        self._recipes = [evaluation.recipe for evaluation in evaluations]
        self._places = Places()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._paces = pace
        self._pace: Pace | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> InProcess:
        if max(self._limits, default=0) >= MANY:
            await self._stack.enter_async_context(calm_collector())
        if self._paces:
            self._pace = self._stack.enter_context(paced())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def begin(self, evaluation: int) -> None:
        await self._models.client(evaluation)

    async def submit(self, job: RolloutJob) -> None:
        limit = self._places.up_to(self._limits[job.evaluation])
        async with limit:  # after the rollouts of earlier jobs
            pass
        self._check()
        client = await self._models.client(job.evaluation)
        task = asyncio.get_running_loop().create_task(self._run(job, client))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        pace = self._pace
        # It takes its permit before the next one requests one.
        await (pace.turn() if pace is not None and pace.spent() else asyncio.sleep(0))

    async def drain(self) -> None:
        while self._tasks and self._failure is None:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        self._check()

    async def end(self, evaluation: int) -> None:
        await self._models.release(evaluation)

    async def close(self) -> None:
        await cancel(self._tasks)
        await self._stack.aclose()
        await self._models.close()

    async def _run(self, job: RolloutJob, client: Any) -> None:
        evaluation, recipe = self._evaluations[job.evaluation], self._recipes[job.evaluation]
        limit = self._places.up_to(self._limits[job.evaluation])
        found = await attempt(evaluation.env, client, recipe, evaluation.tasks[job.task], job.places, limit)
        self._sink.rollouts(job, found)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()
            for other in self._tasks:
                other.cancel()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
