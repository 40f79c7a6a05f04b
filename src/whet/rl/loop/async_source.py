"""The asynchronous source of batches: groups are in flight all the time, concurrently with the learner.

How far ahead, which finished groups make a batch and what is too old, `rollout_buffer.py` decides; here its decisions
become asyncio tasks. A group that was rejected or is too old is replaced by another task of its environment.

A checkpoint holds the tasks that were drawn and not yet trained. A resumed run attempts them first, so that nothing
drawn is lost, and nothing that was trained is drawn again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from whet.rl.data.curriculum import Curriculum, DrawnTask
from whet.rl.loop.group import Group, OnProgress, Part
from whet.rl.loop.group_runner import GroupRunner
from whet.rl.loop.rollout_buffer import RolloutBuffer
from whet.system.cancellation import cancel

Attempt = asyncio.Task[Group]


@dataclass(slots=True)
class _Flight:
    """A group under way."""

    slot: int
    task: DrawnTask
    began: int | None = None  # policy version when its first rollout began

    def begin(self, stream: AsyncSource) -> None:
        self.began = stream.version


@dataclass(slots=True)
class AsyncSource:
    """Keeps as many groups in flight as the buffer allows. See `Source`."""

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

    async def part(self, on_progress: OnProgress) -> Part:
        size = self.buffer.lead.groups_per_batch
        while True:
            if self._failure is not None:
                raise self._failure
            self._open_places()
            if (taken := self.buffer.take()) is not None:
                self._open_places()  # what was taken makes room
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
        self._open_places()

    def idle_s(self) -> float:
        self._settle_idle()
        found, self._idle = self._idle, 0.0
        return found

    def state_dict(self) -> dict[str, Any]:
        drawn = [(flight.slot, flight.task) for flight in self._flying.values()]
        drawn += [(group.slot, group.task) for group in self.buffer.waiting()]
        tasks = [task for _, task in sorted(drawn, key=lambda place: place[0])] + self._pending
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

    def _open_places(self) -> None:
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
            self._open_places()
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
