"""Groups in flight beside the learner: replaced, cancelled, counted, remembered. Groups land when the test says so."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from whet.errors import RewardError, TrainingError
from whet.rl.data.curriculum import DrawnTask, MixedCurriculum, Pool
from whet.rl.loop.group import BatchPart, Group, GroupFilter
from whet.rl.loop.group_runner import OnBegin
from whet.rl.loop.rollout_buffer import Lead, RolloutBuffer
from whet.rl.loop.sources import AsyncSource
from whet.types import State


@dataclass
class Runway:
    """A runner whose groups end when `land` is called. Rollouts of the first `places` groups have begun."""

    rollouts_per_example: int = 2
    places: int = 99
    flying: dict[int, tuple[int, DrawnTask, asyncio.Future[Group]]] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)

    async def run(self, slot: int, task: DrawnTask, on_begin: OnBegin | None = None) -> Group:
        if len(self.flying) < self.places and on_begin is not None:
            on_begin()
        future: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self.flying[task.number] = (slot, task, future)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(task.number)
            raise
        finally:
            del self.flying[task.number]

    def lengths_so_far(self, task: DrawnTask) -> list[float]:
        return [100.0 + task.number] * self.rollouts_per_example

    async def land(self, number: int, *, version: int = 0, failed: bool = False) -> None:
        await turns()
        slot, task, future = self.flying[number]
        trajectory = [{"tokens": {"policy_version": [[version, 1]], "completion_ids": [7]}}]
        states = [State(reward=reward, error=None, trajectory=trajectory) for reward in (0.0, 1.0)]
        if failed:
            states[0]["error"] = RewardError("no")
        future.set_result(Group(slot, task, "env", states))
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def flown(body: Callable[[AsyncSource, Runway], Awaitable[None]], *, runway: Runway | None = None, **lead: Any) -> None:
    """Run a test's body with a stream of batches of two groups."""
    runway = runway or Runway()
    curriculum = MixedCurriculum([Pool("env", 100)], seed=0)
    made: Any = runway
    stream = AsyncSource(
        made, curriculum, RolloutBuffer(Lead(2, **lead), GroupFilter(max_attempts=2, max_errored_groups=1))
    )

    async def whole() -> None:
        try:
            await body(stream, runway)
        finally:
            await stream.close()
        assert runway.flying == {}, "closing leaves nothing in flight"

    asyncio.run(whole())


async def batch(stream: AsyncSource) -> BatchPart:
    return await asyncio.wait_for(stream.part(lambda *_: None), timeout=60)


async def begin(stream: AsyncSource, runway: Runway) -> None:
    """The first batch, of groups 0 and 1, is taken and trained; groups 2 and 3 are in flight."""
    taking = asyncio.create_task(batch(stream))
    await runway.land(0)
    await runway.land(1)
    assert [group.id for group in (await taking).groups] == [0, 1]
    await turns()
    stream.advance(1)
    await turns()
    assert sorted(runway.flying) == [2, 3]


def test_rollouts_that_became_too_old_are_counted_with_their_lengths() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        await begin(stream, runway)
        await runway.land(2, version=0)  # its rollouts have a token each
        stream.advance(2)
        await turns()
        assert runway.cancelled == [3]
        assert sorted(stream.buffer.group_filter.tally.lost_lengths) == [1.0, 1.0, 103.0, 103.0]

    flown(body, max_async_level=1, max_off_policy_steps=1)


def test_nothing_is_in_flight_beside_the_first_batch_which_it_would_only_delay() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        taking = asyncio.create_task(batch(stream))
        await runway.land(1)
        assert sorted(runway.flying) == [0]
        await runway.land(0)
        await taking
        await turns()
        assert sorted(runway.flying) == [2, 3]

    flown(body, max_async_level=2)


def test_groups_of_the_next_batch_are_in_flight_while_the_learner_has_this_one() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        taking = asyncio.create_task(batch(stream))
        await runway.land(0)
        await runway.land(1)
        assert [group.id for group in (await taking).groups] == [0, 1]
        assert sorted(runway.flying) == [2, 3]

    flown(body)


def test_a_group_that_lands_makes_room_for_another_as_far_ahead_as_the_level_allows() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        await begin(stream, runway)
        await runway.land(3)
        assert sorted(runway.flying) == [2, 4]
        await runway.land(4)
        assert sorted(runway.flying) == [2, 5]
        await runway.land(5)
        assert sorted(runway.flying) == [2]

    flown(body)


def test_a_batch_is_there_in_parts_while_its_other_groups_are_in_flight() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        taking = asyncio.create_task(batch(stream))
        await runway.land(1)
        part = await taking
        assert [group.id for group in part.groups] == [1]
        assert part.tally is None
        taking = asyncio.create_task(batch(stream))
        await runway.land(0)
        part = await taking
        assert [group.id for group in part.groups] == [0]
        assert part.tally is not None

    flown(body, parts=2)


def test_a_run_that_ends_within_a_batch_attempts_all_of_its_groups_again() -> None:
    saved: dict[str, Any] = {}

    async def body(stream: AsyncSource, runway: Runway) -> None:
        taking = asyncio.create_task(batch(stream))
        await runway.land(1)
        assert (await taking).tally is None
        saved.update(stream.state_dict())

    async def resumed(stream: AsyncSource, runway: Runway) -> None:
        stream.load_state_dict(saved, 0)
        stream.advance(0)
        await turns()
        assert sorted(runway.flying) == [0, 1]

    flown(body, parts=2)
    flown(resumed, parts=2)


def test_what_lands_while_the_learner_computes_is_there_when_it_asks() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        await begin(stream, runway)
        taking = asyncio.create_task(batch(stream))
        for number in (3, 4, 5, 2):
            await runway.land(number)
        assert [group.id for group in (await taking).groups] == [3, 4]
        assert [group.id for group in (await batch(stream)).groups] == [2, 5]

    flown(body)


def test_a_group_with_an_error_is_replaced_at_once_even_while_nobody_asks() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        await begin(stream, runway)
        await runway.land(2, failed=True)
        assert sorted(runway.flying) == [3, 4]
        await runway.land(4)
        await runway.land(3)
        taken = await batch(stream)
        assert taken.tally is not None
        assert [group.id for group in taken.groups] == [3, 4]
        assert taken.tally.errored_rollouts == 1

    flown(body)


def test_nothing_but_errors_is_told_to_whoever_asks_for_a_batch() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        await begin(stream, runway)
        await runway.land(2, failed=True)
        await runway.land(4, failed=True)
        with pytest.raises(TrainingError, match="2 groups in a row"):
            await batch(stream)

    flown(body)


def test_groups_that_began_too_long_ago_are_cancelled_and_replaced() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        await begin(stream, runway)
        await runway.land(2, version=1)
        assert sorted(runway.flying) == [3, 4]
        stream.advance(2)
        await turns()
        assert sorted(runway.cancelled) == [3]  # it began with policy 0, group 4 with policy 1
        assert sorted(runway.flying) == [4, 5]
        stream.advance(3)
        await turns()
        assert sorted(runway.cancelled) == [3, 4]
        assert sorted(runway.flying) == [5, 6, 7]  # group 2 became too old while it waited
        assert stream.buffer.group_filter.tally.cancelled_rollouts == 4
        assert stream.buffer.group_filter.tally.rejected == {"too old": 1}

    flown(body, max_off_policy_steps=1)


def test_a_group_that_has_only_waited_for_a_place_is_not_too_old() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        stream.advance(0)
        await turns()
        stream.advance(5)
        await turns()
        assert sorted(runway.cancelled) == [0]

    flown(body, runway=Runway(places=1), max_off_policy_steps=1)


def test_a_checkpoint_holds_what_was_drawn_and_not_trained_and_it_comes_first_after_a_resume() -> None:
    saved: dict[str, Any] = {}

    async def body(stream: AsyncSource, runway: Runway) -> None:
        await begin(stream, runway)
        taking = asyncio.create_task(batch(stream))
        for number in (2, 4, 5):
            await runway.land(number)
        assert [group.id for group in (await taking).groups] == [2, 4]
        stream.advance(2)
        await turns()
        assert sorted(runway.flying) == [3, 6]
        saved.update(stream.state_dict())

    async def resumed(stream: AsyncSource, runway: Runway) -> None:
        stream.load_state_dict(saved, 2)
        taking = asyncio.create_task(batch(stream))
        await turns()
        assert sorted(runway.flying) == [3, 5]  # 5 had landed, and was not trained
        for number in (5, 3):
            await runway.land(number)
        assert [group.id for group in (await taking).groups] == [3, 5]
        stream.advance(3)
        await turns()
        assert sorted(runway.flying) == [6, 7]

    flown(body)
    flown(resumed)


def test_time_without_anything_in_flight_is_counted_as_waiting_for_the_policy() -> None:
    async def body(stream: AsyncSource, runway: Runway) -> None:
        taking = asyncio.create_task(batch(stream))
        await turns()
        stream.idle_s()
        assert stream.idle_s() == 0
        for number in range(4):
            await runway.land(number)
        await taking
        assert stream.idle_s() > 0
        stream.advance(1)
        stream.idle_s()
        assert stream.idle_s() == 0

    flown(body)
