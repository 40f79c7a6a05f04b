"""Jobs whose callers await their states, and the permits of their rollouts, which are handed out in this process.

A permit is taken here, by the rollout's group, and held until the worker says that the rollout has left it. So one
limit holds for all workers, and what a group measures by its permits (when it began, what is not over) stays the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from whet.rollouts.jobs import RolloutJob
from whet.rollouts.limits import Limit
from whet.types import State

Enter = Callable[[], None]
"""Tells the worker that one more rollout of the job has a permit."""


@dataclass(slots=True)
class _Awaited:
    """A job, the permits that are held for it, and the caller that waits."""

    limit: Limit
    states: asyncio.Future[list[State]]
    rollouts: int
    enter: Enter | None = None  # None: no worker has it
    early: int = 0  # permits that were there before a worker was
    holders: list[asyncio.Task[None]] = field(default_factory=list)
    left: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def take_permits(self) -> None:
        """For each rollout, one after the other, in the order in which jobs do this."""
        self.enter, self.early, self.left = None, 0, asyncio.Semaphore(0)
        self.holders = [asyncio.get_running_loop().create_task(self._hold()) for _ in range(self.rollouts)]

    async def _hold(self) -> None:
        async with self.limit:
            if self.enter is None:
                self.early += 1
            else:
                self.enter()
            await self.left.acquire()

    def let_go(self) -> None:
        for holder in self.holders:
            holder.cancel()


class AwaitedJobs:
    """Those of one pool."""

    def __init__(self) -> None:
        self._jobs: dict[RolloutJob, _Awaited] = {}

    def begin(self, job: RolloutJob, limit: Limit) -> asyncio.Future[list[State]]:
        """The states that the job will have."""
        assert job.whole
        assert job not in self._jobs, "one job at a time has this name"
        states: asyncio.Future[list[State]] = asyncio.get_running_loop().create_future()
        awaited = self._jobs[job] = _Awaited(limit, states, len(job.indices))
        awaited.take_permits()
        return states

    def given(self, job: RolloutJob, enter: Enter) -> None:
        """The job was sent to a worker; `enter` sends the worker each of its permits."""
        if (awaited := self._jobs.get(job)) is not None:
            awaited.enter = enter
            for _ in range(awaited.early):
                enter()

    def freed(self, job: RolloutJob) -> None:
        """One of its rollouts needs its permit no longer."""
        if (awaited := self._jobs.get(job)) is not None:
            awaited.left.release()

    def lost(self, job: RolloutJob) -> None:
        """Its worker has died; its rollouts begin again."""
        if (awaited := self._jobs.get(job)) is not None:
            awaited.let_go()
            awaited.take_permits()

    def done(self, job: RolloutJob, states: list[State]) -> None:
        awaited = self._jobs.get(job)
        if awaited is not None and not awaited.states.done():
            awaited.states.set_result(states)

    def fail(self, error: BaseException) -> None:
        """No job will be done any more."""
        for awaited in self._jobs.values():
            if not awaited.states.done():
                awaited.states.set_exception(error)

    def end(self, job: RolloutJob) -> None:
        """Its caller has what it gets: permits that are still held are free."""
        self._jobs.pop(job).let_go()
