"""Batches one after the other: their order does not depend on which group finished first."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from whet.rl.data.curriculum import DrawnTask, MixedCurriculum, Pool
from whet.rl.loop.group import Group, GroupFilter
from whet.rl.loop.sources import SyncSource
from whet.types import State


class Runner:
    """Groups that end in the opposite order of their slots; the rewards of those in slot 1 differ at the second try."""

    def __init__(self, slots: int) -> None:
        self.attempts = [0] * slots

    async def run(self, slot: int, task: DrawnTask) -> Group:
        self.attempts[slot] += 1
        for _ in range(10 * (len(self.attempts) - slot)):
            await asyncio.sleep(0)
        equal = slot == 1 and self.attempts[slot] == 1
        rewards = (1.0, 1.0 if equal else 0.0)
        return Group(slot, task, "e", [State(reward=reward, error=None) for reward in rewards])


def test_a_batch_is_in_slot_order_whatever_finished_first() -> None:
    runner, seen = Runner(5), list[tuple[int, int]]()
    source = SyncSource(
        cast(Any, runner), MixedCurriculum([Pool("e", 100, 1.0)], seed=0), 5, partial(GroupFilter, min_variance=0.1)
    )
    part = asyncio.run(source.part(lambda done, total: seen.append((done, total))))
    assert [group.slot for group in part.groups] == [0, 1, 2, 3, 4]
    assert runner.attempts == [1, 2, 1, 1, 1]
    assert part.tally is not None
    assert part.tally.rejected == {"too little variance": 1}
    assert seen[-1] == (5, 5)
