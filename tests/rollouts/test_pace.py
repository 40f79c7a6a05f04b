"""How rollouts share the time of one event loop; see `whet.rollouts.pace`."""

import asyncio

import pytest

from whet.rollouts import pace
from whet.rollouts.pace import LoopPace, current_pace, paced


async def work(keeping: LoopPace, name: int, times: int, log: list[tuple[int, int]]) -> None:
    """Work that never waits for anything, but lets others go first where it should."""
    for turn in range(times):
        if keeping.spent():
            await keeping.turn()
        log.append((name, turn))


def loop_turns(monkeypatch: pytest.MonkeyPatch, slice_s: float, workers: int) -> tuple[int, list[tuple[int, int]]]:
    """How often the loop turned while `workers` did four pieces of work each, and in which order those were done."""
    monkeypatch.setattr(pace, "SLICE_S", slice_s)

    async def run() -> tuple[int, list[tuple[int, int]]]:
        turns = 0

        async def heartbeat() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beating = asyncio.ensure_future(heartbeat())
        log: list[tuple[int, int]] = []
        keeping = LoopPace()
        await asyncio.gather(*(work(keeping, name, 4, log) for name in range(workers)))
        beating.cancel()
        return turns, log

    return asyncio.run(run())


def test_work_that_fits_into_a_slice_is_done_in_one_turn_of_the_loop(monkeypatch):
    turns, log = loop_turns(monkeypatch, 60.0, workers=100)
    assert len(log) == 400
    assert turns <= 3


def test_the_loop_turns_whenever_a_slice_is_used_up(monkeypatch):
    turns, log = loop_turns(monkeypatch, 0.0, workers=100)
    assert len(log) == 400
    assert turns >= 200


def test_who_came_first_goes_on_first(monkeypatch):
    _, log = loop_turns(monkeypatch, 0.0, workers=50)
    later = [name for name, turn in log if turn == 2]
    assert later == sorted(later)


def test_no_slice_is_spent_where_nothing_was_done(monkeypatch):
    monkeypatch.setattr(pace, "SLICE_S", 0.0)

    async def run() -> list[bool]:
        keeping = LoopPace()
        spent = []
        for _ in range(5):
            spent.append(keeping.spent())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return spent

    assert asyncio.run(run()) == [False] * 5


def test_a_cancelled_one_in_line_does_not_hold_up_the_others(monkeypatch):
    monkeypatch.setattr(pace, "SLICE_S", 0.0)

    async def run() -> list[str]:
        keeping = LoopPace()
        log: list[str] = []

        async def wait(name: str) -> None:
            await keeping.turn()
            log.append(name)

        assert not keeping.spent()  # a slice begins
        tasks = [asyncio.ensure_future(wait(name)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks, timeout=60)
        return log

    assert asyncio.run(run()) == ["b", "c"]


def test_only_what_is_begun_within_keeps_the_pace():
    async def run() -> None:
        assert current_pace() is None
        with paced() as outer:
            assert current_pace() is outer
            assert await asyncio.create_task(seen()) is outer
            with paced() as inner:
                assert inner is outer
        assert current_pace() is None

    async def seen() -> LoopPace | None:
        return current_pace()

    asyncio.run(run())
