"""A limit that several evaluations share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from whet.rollouts.limits import SharedLimit


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


async def holding(permits: SharedLimit, number: int, name: str, order: list[str], done: asyncio.Event) -> None:
    async with permits.up_to(number):
        order.append(name)
        await done.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_no_more_are_taken_than_allowed_and_who_came_first_goes_first() -> None:
    async def work() -> None:
        permits, order, done = SharedLimit(), list[str](), [asyncio.Event() for _ in range(4)]
        tasks = [asyncio.create_task(holding(permits, 2, name, order, done[at])) for at, name in enumerate("abcd")]
        await settle()
        assert (order, permits.taken) == (["a", "b"], 2)
        done[1].set()
        await settle()
        assert order == ["a", "b", "c"]
        for event in done:
            event.set()
        await asyncio.gather(*tasks)
        assert (order, permits.taken) == (["a", "b", "c", "d"], 0)

    run(work())


def test_each_goes_by_its_own_number_and_nobody_is_overtaken() -> None:
    async def work() -> None:
        permits, order, done = SharedLimit(), list[str](), asyncio.Event()
        asked = [("a", 3), ("b", 1), ("c", 3)]  # b waits until nobody is there, and c waits behind it
        tasks = [asyncio.create_task(holding(permits, number, name, order, done)) for name, number in asked]
        await settle()
        assert order == ["a"]
        done.set()
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "c"]

    run(work())


def test_who_is_cancelled_in_line_lets_the_others_on() -> None:
    async def work() -> None:
        permits, order, done = SharedLimit(), list[str](), asyncio.Event()
        asked = [("a", 2), ("b", 1), ("c", 2)]
        tasks = [asyncio.create_task(holding(permits, number, name, order, done)) for name, number in asked]
        await settle()
        assert order == ["a"]
        tasks[1].cancel()
        await settle()
        assert order == ["a", "c"]
        done.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert permits.taken == 0

    run(work())


def test_who_is_cancelled_just_as_it_is_given_a_place_gives_it_back() -> None:
    async def work() -> None:
        permits, order, done = SharedLimit(), list[str](), asyncio.Event()
        await permits.take(1)
        waiting = asyncio.create_task(holding(permits, 1, "a", order, done))
        await settle()
        permits.give_back()
        waiting.cancel()
        await settle()
        assert (order, permits.taken) == ([], 0)

    run(work())
