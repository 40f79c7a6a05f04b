"""The synchronous source of batches: keeps groups in flight until one batch is complete, and then nothing.

A batch is planned as slots, one group each; a group that the filter rejects leaves its slot open for a replacement.
`async_source.py` is the asynchronous counterpart.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from whet.rl.data.curriculum import Curriculum
from whet.rl.loop.group import Group, OnProgress, Part
from whet.rl.loop.group_filter import MAX_ERRORED_GROUPS, GroupFilter
from whet.rl.loop.group_runner import GroupRunner
from whet.system.cancellation import cancel
from whet.system.quiet import Quiet

BEFORE_SAMPLING = 0
"""Rank of the wait for a quiet event loop: the engine waits with a higher one, so replacements are with it by then."""


@dataclass(slots=True)
class SyncSource:
    """Runs the groups of one step at a time. See `Source`."""

    runner: GroupRunner
    curriculum: Curriculum
    groups_per_batch: int
    min_variance: float = 0.0
    max_errored_groups: int = MAX_ERRORED_GROUPS
    _idle_since: float | None = None

    async def part(self, on_progress: OnProgress) -> Part:
        """A whole batch: groups are run until every slot is filled. Cancelled or failed, it gives its tasks back."""
        before = self.curriculum.state_dict()
        try:
            batch = await self._fill(on_progress)
        except BaseException:  # a resumed run draws them again
            self.curriculum.load_state_dict(before)
            raise
        self._idle_since = time.perf_counter()
        return batch

    async def _fill(self, on_progress: OnProgress) -> Part:
        group_filter = GroupFilter(self.min_variance, max_errored_groups=self.max_errored_groups)
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
        return Part([filled[slot] for slot in sorted(filled)], group_filter.tally)

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
