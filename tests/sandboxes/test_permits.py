"""Who gets the next permit: a fair queue, and a cap shared by event loops on several threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.sandboxes import permits as module
from whet.sandboxes.permits import FairQueue, Permits


def drained(queue: FairQueue[str]) -> list[str]:
    items = []
    while (item := queue.pop()) is not None:
        items.append(item)
    return items


def test_owners_take_turns_and_each_is_served_in_its_own_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.push(item[0], item)
    assert drained(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_one_item_waits_for_one_turn_however_many_another_owner_has() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(1000):
        queue.push("greedy", f"g{number}")
    queue.pop()
    queue.push("modest", "m")
    assert [queue.pop(), queue.pop()] == ["g1", "m"]


def test_what_gave_up_waiting_is_passed_over() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "b1"):
        queue.push(item[0], item)
    queue.discard("a", "a1")
    queue.discard("b", "b1")
    queue.discard("c", "never there")
    assert (drained(queue), len(queue)) == (["a2"], 0)


@given(st.lists(st.sampled_from("abcd"), max_size=60))
def test_between_two_turns_of_an_owner_every_other_that_waits_has_one(owners: list[str]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number, owner in enumerate(owners):
        queue.push(owner, (owner, number))
    left = Counter(owners)
    since: dict[str, set[str]] = {}
    while (item := queue.pop()) is not None:
        owner = item[0]
        waiting = {other for other in left if left[other] and other != owner}
        assert waiting <= since.get(owner, waiting)
        for seen in since.values():
            seen.add(owner)
        since[owner] = set()
        left[owner] -= 1
    assert not +left


def test_one_cap_holds_over_event_loops_on_several_threads() -> None:
    permits = Permits(3)
    most = 0

    async def use(owner: int) -> None:
        nonlocal most
        permit = await permits.take(owner)
        most = max(most, permits.taken)
        await asyncio.sleep(0)
        permits.give_back(permit)

    async def many(owner: int) -> None:
        await asyncio.gather(*(use(owner) for _ in range(50)))

    threads = [threading.Thread(target=asyncio.run, args=(many(owner),)) for owner in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, permits.taken, permits.waiting) == (3, 0, 0)


def test_a_place_given_back_twice_is_one_place() -> None:
    async def run() -> int:
        permits = Permits(1)
        permit = await permits.take()
        permits.give_back(permit)
        permits.give_back(permit)
        await permits.take()
        return permits.taken

    assert asyncio.run(run()) == 1


def test_a_place_granted_while_its_owner_is_cancelled_goes_to_the_next() -> None:
    async def run() -> None:
        permits = Permits(1)
        first = await permits.take()
        second, third = asyncio.ensure_future(permits.take()), asyncio.ensure_future(permits.take())
        await asyncio.sleep(0)
        permits.give_back(first)  # granted to the second, which has not run since
        second.cancel()
        await third
        assert (permits.taken, permits.waiting) == (1, 0)

    asyncio.run(run())


def test_a_larger_limit_lets_waiters_in_and_a_smaller_one_lets_none_in() -> None:
    async def run() -> None:
        permits = Permits(1)
        first = await permits.take()
        second = asyncio.ensure_future(permits.take())
        await asyncio.sleep(0)
        permits.resize(2)
        await second
        permits.resize(1)
        third = asyncio.ensure_future(permits.take())
        permits.give_back(first)
        await asyncio.sleep(0)
        assert (permits.taken, permits.waiting) == (1, 1)
        third.cancel()

    asyncio.run(run())


def test_places_of_an_event_loop_that_has_ended_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECLAIM_S", 0.01)
    permits = Permits(1)
    abandoned: list[bool] = []
    lost = asyncio.run(permits.take())
    lost.abandoned = lambda: abandoned.append(True)
    asyncio.run(permits.take())
    assert (abandoned, permits.taken) == ([True], 1)
