"""Members that end: what is logged, when they are back, when requests wait, and when they fail."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from scripted_members import Members, request, until

from whet.errors import EngineError
from whet.inference.pool.health import RestartPolicy
from whet.rl.supervision.watchdog_thread import Watchdog, WatchedEngine

ASKED = request(max_tokens=10)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("whet.inference.pool")]


def test_a_death_and_a_return_are_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    members = Members(2)

    async def work() -> None:
        await members.pool.start()
        members.all[1].kill()
        await until(lambda: members.pool.metrics()["engine/restarts"] == 1)
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)

    asyncio.run(members.run(work()))
    assert lines(caplog) == [
        "engine 1 is down: it was killed by SIGKILL; it is restarted in 0 s, number 1",
        "engine 1 is up again, 0 s later, with version 0",
    ]
    assert members.all[1].stops == 2, "what had ended was cleaned up before it was started again"


def test_an_engine_that_cannot_start_again_is_tried_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(2, restarts=RestartPolicy(max_restarts=4, first_pause_s=0.5, longest_pause_s=3.0))
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        if seconds >= 0.5:
            pauses.append(seconds)
        await sleep(0)

    async def work() -> None:
        await members.pool.start()
        monkeypatch.setattr(asyncio, "sleep", note)
        members.all[0].fails_to_start = [EngineError("no memory")] * 9
        members.all[0].kill()
        await until(lambda: "not restarted any more" in members.pool.waiting_for())
        monkeypatch.undo()
        assert (await members.pool.sample(ASKED)).ids, "the other one answers"

    asyncio.run(members.run(work()))
    assert pauses == [0.5, 1.0, 2.0, 3.0]
    assert all(a < b for a, b in pairwise(pauses))


def test_below_the_least_number_requests_wait_and_this_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    members = Members(3, min_healthy=2)

    async def work() -> None:
        await members.pool.start()
        for member in members.all[:2]:
            member.may_start.clear()
            member.kill()
        await until(lambda: members.pool.metrics()["engine/healthy"] == 1)
        waiting = [asyncio.create_task(members.pool.sample(ASKED)) for _ in range(5)]
        await until(lambda: members.pool.metrics()["engine/queue"] == 5)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        assert not members.all[2].engine.requests
        members.all[0].may_start.set()
        assert all(await asyncio.gather(*waiting))
        members.all[1].may_start.set()

    asyncio.run(members.run(work()))
    said = [line for line in lines(caplog) if "requests wait" in line or "requests continue" in line]
    assert len(said) == 2
    assert said[0].startswith("requests wait until 2 engines are up: 2 of 3 engines are down: engine 0 ")
    assert said[1] == "2 of 3 engines are up: requests continue"


def test_the_watchdog_says_what_the_engines_wait_for() -> None:
    members, dog = Members(3, restarts=RestartPolicy(first_pause_s=8.0), clock=lambda: 100.0), Watchdog()

    async def work() -> None:
        engine = WatchedEngine(members.pool, dog)
        await members.pool.start()
        members.all[1].kill()
        await until(lambda: "restarts in" in members.pool.waiting_for())
        for member in members.all:
            member.holds_at = 1
        asked = asyncio.create_task(engine.sample(ASKED))
        await until(lambda: members.pool.metrics()["engine/queue"] == 1)
        (wait,) = dog.waits._open.values()
        assert wait.detail is not None
        assert wait.detail() == (
            "1 requests are waiting; 1 of 3 engines are down: engine 1 restarts in 8 s (it was killed by SIGKILL)"
        )
        assert engine.metrics()["engine/healthy"] == 2
        asked.cancel()
        await asyncio.wait({asked})

    asyncio.run(members.run(work()))


def test_requests_fail_at_once_when_no_engine_has_a_restart_left() -> None:
    members = Members(2, restarts=RestartPolicy(max_restarts=1, first_pause_s=0.0))

    async def work() -> None:
        await members.pool.start()
        for member in members.all:
            member.holds_at = 3
        running = [asyncio.create_task(members.pool.sample(ASKED)) for _ in range(4)]
        await until(lambda: all(member.engine.in_flight for member in members.all))
        for member in members.all:
            member.fails_to_start = [EngineError("no memory")]
            member.kill()
        for error in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(error, EngineError)
            assert str(error).startswith("2 of 2 engines have ended for good: engine 0 (it did not start: no memory; ")
        with pytest.raises(EngineError, match=r"engine 1 \(.*; restarts: 1"):
            await members.pool.sample(ASKED)

    asyncio.run(members.run(work()))


def test_a_first_start_that_fails_is_reported_once_and_leaves_nothing_running(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = Members(2, min_healthy=2, restarts=RestartPolicy(first_pause_s=60.0))
    members.all[1].fails_to_start = [EngineError("there is no vLLM here")]

    async def work() -> None:
        for _ in range(2):
            with pytest.raises(EngineError, match="there is no vLLM here"):
                await members.pool.sample(ASKED)
        assert [member.cause for member in members.all] == ["it was stopped"] * 2

    asyncio.run(members.run(work()))
    assert len(members.all[0].engines) == 1
    assert not lines(caplog), "the error says it all"


def test_a_first_start_that_fails_is_tried_again_where_enough_are_up() -> None:
    members = Members(2)
    members.all[1].fails_to_start = [EngineError("the port was taken")]

    async def work() -> None:
        await members.pool.start()
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)

    asyncio.run(members.run(work()))
    assert members.pool.metrics()["engine/1/restarts"] == 1


def test_a_mistake_of_the_program_reaches_every_request() -> None:
    members = Members(2)

    def broken() -> str | None:
        raise ZeroDivisionError("a bug")

    async def work() -> None:
        await members.pool.start()
        members.all[0].failure = broken  # type: ignore[method-assign]
        members.all[1].holds_at = 0
        await until(lambda: members.pool._failure)
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await members.pool.sample(ASKED)

    asyncio.run(members.run(work()))
