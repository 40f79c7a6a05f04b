"""An event loop says when nothing is left to do but wait."""

from __future__ import annotations

import asyncio
from typing import Any

from whet.system import cancellation, quiet
from whet.system.quiet import Quiet


def run(work: Any) -> Any:
    return cancellation.run(work)


async def turns(count: int, seen: list[Any], name: Any) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
    seen.append(name)


def here() -> Quiet:
    found = Quiet.here()
    assert found is not None
    return found


def test_a_wait_ends_after_everything_that_can_run_however_many_turns_it_takes() -> None:
    async def work() -> list[Any]:
        seen: list[Any] = []
        tasks = [asyncio.ensure_future(turns(count, seen, count)) for count in (1, 50, 500)]
        await here().wait(0)
        seen.append("quiet")
        await asyncio.gather(*tasks)
        return seen

    assert run(work()) == [1, 50, 500, "quiet"]


def test_lower_ranks_and_all_that_follows_from_them_come_first() -> None:
    async def waiter(rank: int, seen: list[Any]) -> None:
        await here().wait(rank)
        await turns(20, seen, rank)

    async def work() -> list[Any]:
        seen: list[Any] = []
        await asyncio.gather(waiter(1, seen), waiter(0, seen), waiter(1, seen))
        return seen

    assert run(work()) == [0, 1, 1]


def test_timers_are_not_waited_for_and_what_is_outside_is() -> None:
    async def work() -> list[str]:
        loop, seen, busy = asyncio.get_running_loop(), list[str](), [True]
        loop.call_later(60, seen.append, "timer")
        here().outside = lambda: busy[0]

        def end() -> None:
            busy[0] = False
            seen.append("outside")

        loop.call_later(0.05, end)
        await here().wait(0)
        return seen

    assert run(work()) == ["outside"]


def test_a_task_that_spins_does_not_keep_a_wait_for_ever(monkeypatch: Any) -> None:
    monkeypatch.setattr(quiet, "MOST_TURNS", 100)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def work() -> bool:
        task = asyncio.ensure_future(spin())
        await here().wait(0)
        return task.cancel()

    assert run(work())


def test_a_loop_that_is_made_elsewhere_has_no_quiet() -> None:
    async def work() -> Quiet | None:
        return Quiet.here()

    assert asyncio.run(work()) is None
