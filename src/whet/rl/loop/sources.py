"""Where batches come from: in turn with the learner (`SyncSource`), or concurrently with it (`AsyncSource`).

The synchronous source keeps groups in flight until one batch is complete, and then nothing. A batch is planned as
slots, one group each; a group that the filter rejects leaves its slot open for a replacement.

The asynchronous source has groups in flight all the time.

How far ahead, which finished groups make a batch and what is too old, `rollout_buffer.py` decides; here its decisions
become asyncio tasks. A group that was rejected or is too old is replaced by another task of its environment.

A checkpoint holds the tasks that were drawn and not yet trained. A resumed run attempts them first, so that nothing
drawn is lost, and nothing that was trained is drawn again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whet.rl.data.curriculum import Curriculum, DrawnTask
from whet.rl.loop.group import BatchPart, Group, GroupFilter, OnProgress
from whet.rl.loop.group_runner import GroupRunner
from whet.rl.loop.rollout_buffer import RolloutBuffer
from whet.system.cancellation import cancel
from whet.system.quiet import Quiet

BEFORE_SAMPLING = 0
"""Rank of the wait for a quiet event loop: the engine waits with a higher one, so replacements are with it by then."""


@dataclass(slots=True)
class SyncSource:
    """Runs the groups of one step at a time. See `BatchSource`."""

    runner: GroupRunner
    curriculum: Curriculum
    groups_per_batch: int
    new_filter: Callable[[], GroupFilter] = GroupFilter  # for each batch
    _idle_since: float | None = None

    async def part(self, on_progress: OnProgress) -> BatchPart:
        """A whole batch: groups are run until every slot is filled. Cancelled or failed, it gives its tasks back."""
        before = self.curriculum.state_dict()
        try:
            batch = await self._fill(on_progress)
        except BaseException:  # a resumed run draws them again
            self.curriculum.load_state_dict(before)
            raise
        self._idle_since = time.perf_counter()
        return batch

    async def _fill(self, on_progress: OnProgress) -> BatchPart:
        group_filter = self.new_filter()
        filled = dict[int, Group]()
        tasks = [self.curriculum.next_task() for _ in range(self.groups_per_batch)]
        attempted: list[Group] = []
        running = {asyncio.create_task(self.runner.run(slot, task)): (slot, task) for slot, task in enumerate(tasks)}
        try:
            while running:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if (quiet := Quiet.here()) is not None:  # so that timing does not decide which have finished
                    await quiet.wait(BEFORE_SAMPLING)
                # Sets have no order: decide in slot order, so that replacements draw the same tasks every time.
                for done in sorted([task for task in running if task.done()], key=lambda item: running[item][0]):
                    slot, task = running.pop(done)
                    attempted.append(done.result())
                    accepted = group_filter.decide(done.result())
                    if accepted is not None:
                        filled[slot] = accepted
                    else:
                        again = self.curriculum.next_of(task.environment)
                        running[asyncio.create_task(self.runner.run(slot, again))] = (slot, again)
                on_progress(len(filled), self.groups_per_batch)
        finally:
            await cancel(running)
        # In the order of the draws: the clock must not decide what comes next.
        for group in sorted(attempted, key=lambda group: group.id):
            if not group.errors:
                self.curriculum.observe(group.task, float(group.rewards_G.mean()))
        return BatchPart([filled[slot] for slot in sorted(filled)], group_filter.tally)

    def waiting(self) -> list[Group]:
        """None: nothing is sampled ahead."""
        return []

    def advance(self, version: int) -> None:
        """Nothing is in flight between two batches, so new weights change nothing."""

    def idle_s(self) -> float:
        now = time.perf_counter()
        since, self._idle_since = self._idle_since or now, now
        return now - since

    def state_dict(self) -> dict[str, Any]:
        return self.curriculum.state_dict()

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        self.curriculum.load_state_dict(state)

    async def close(self) -> None: ...


Attempt = asyncio.Task[Group]


@dataclass(slots=True)
class _Flight:
    """A running group."""

    slot: int
    task: DrawnTask
    began: int | None = None  # policy version when its first rollout began

    def begin(self, stream: AsyncSource) -> None:
        self.began = stream.version


@dataclass(slots=True)
class AsyncSource:
    """Keeps as many groups in flight as the buffer allows. See `BatchSource`."""

    runner: GroupRunner
    curriculum: Curriculum
    buffer: RolloutBuffer
    version: int = 0
    _flying: dict[Attempt, _Flight] = field(default_factory=dict)
    _pending: list[DrawnTask] = field(default_factory=list)  # drawn before a resume, not attempted since
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: BaseException | None = None
    _idle_since: float | None = None
    _idle: float = 0.0
    _leaving: set[Attempt] = field(default_factory=set)  # cancelled, and not gone yet
    _closed: bool = False

    async def part(self, on_progress: OnProgress) -> BatchPart:
        size = self.buffer.lead.groups_per_batch
        while True:
            if self._failure is not None:
                raise self._failure
            self._open_slots()
            if (taken := self.buffer.take()) is not None:
                self._open_slots()  # what was taken makes room
                return taken
            on_progress(size - self.buffer.missing, size)
            self._changed.clear()
            await self._changed.wait()

    def waiting(self) -> list[Group]:
        return self.buffer.ready_groups()

    def advance(self, version: int) -> None:
        """Take out what has become too old, begin what may begin now."""
        self.version = version
        for group in self.buffer.expire(version):
            self._launch(group.slot, self.curriculum.next_of(group.task.environment))
        for attempt, flight in list(self._flying.items()):
            if self.buffer.lead.too_old(flight.began, version):
                self.buffer.group_filter.tally.lost_lengths += self.runner.lengths_so_far(flight.task)
                self._cancel(attempt)
                self.buffer.group_filter.tally.cancelled_rollouts += self.runner.rollouts_per_example
                self._launch(flight.slot, self.curriculum.next_of(flight.task.environment))
        self._open_slots()

    def idle_s(self) -> float:
        self._settle_idle()
        idle_s, self._idle = self._idle, 0.0
        return idle_s

    def state_dict(self) -> dict[str, Any]:
        drawn = [(flight.slot, flight.task) for flight in self._flying.values()]
        drawn += [(group.slot, group.task) for group in self.buffer.waiting()]
        tasks = [task for _, task in sorted(drawn, key=lambda one: one[0])] + self._pending
        return {
            "curriculum": self.curriculum.state_dict(),
            "pending": [[task.number, task.environment, task.index, task.epoch] for task in tasks],
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        self.curriculum.load_state_dict(state["curriculum"])
        self._pending = [DrawnTask(*numbers) for numbers in state["pending"]]
        self.buffer.opened = step * self.buffer.lead.groups_per_batch
        self.version = step

    async def close(self) -> None:
        self._closed = True
        for attempt in list(self._flying):
            self._cancel(attempt)
        await cancel(self._leaving)

    def _open_slots(self) -> None:
        while self.buffer.may_open(self.version):
            task = self._pending.pop(0) if self._pending else self.curriculum.next_task()
            self._launch(self.buffer.open(task.environment), task)

    def _launch(self, slot: int, task: DrawnTask) -> None:
        if self._closed:
            return
        self._settle_idle()
        self._idle_since = None
        flight = _Flight(slot, task)
        group = self.runner.run(slot, task, lambda: flight.begin(self))
        attempt = asyncio.create_task(group, name=f"group {task.number}")
        self._flying[attempt] = flight
        attempt.add_done_callback(self._landed)

    def _cancel(self, attempt: Attempt) -> None:
        del self._flying[attempt]
        self._leaving.add(attempt)
        attempt.add_done_callback(self._leaving.discard)
        attempt.cancel()

    def _landed(self, attempt: Attempt) -> None:
        flight = self._flying.pop(attempt, None)
        if flight is None:  # cancelled as too old, or with the whole stream
            return
        try:
            group = attempt.result()
            if not group.errors:
                self.curriculum.observe(group.task, float(group.rewards_G.mean()))
            if not self.buffer.add(group, self.version):
                self._launch(flight.slot, self.curriculum.next_of(flight.task.environment))
            self._open_slots()
        except BaseException as error:  # the call that waits for a batch reports it; no other awaits this task
            self._failure = self._failure or error
            self._pending.append(flight.task)  # a resumed run attempts it first, so the mix stays what it is
        if not self._flying and self._idle_since is None:
            self._idle_since = time.perf_counter()
        self._changed.set()

    def _settle_idle(self) -> None:
        if self._idle_since is not None:
            now = time.perf_counter()
            self._idle += now - self._idle_since
            self._idle_since = now
