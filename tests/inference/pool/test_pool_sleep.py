"""All members of a pool sleep while a learner has their devices: none is started then, and each wakes up to date."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scripted_members import SLEPT_BYTES, Members, request, until

from whet.errors import EngineError, ModelError
from whet.inference.protocol import WeightUpdate

ASKED = request(max_tokens=5)
UPDATE = WeightUpdate(1, Path("weights"))


def test_all_sleep_and_wake_with_the_new_weights() -> None:
    members = Members(3)

    async def work() -> None:
        pool = members.pool
        await members.pool.start()
        assert await pool.sleep() == 3 * SLEPT_BYTES
        with pytest.raises(ModelError, match="the engines sleep"):
            await members.pool.sample(ASKED)
        await pool.wake(UPDATE)
        assert [member.engine.did for member in members.all] == [["sleep", "wake", UPDATE]] * 3
        assert [run.version for run in (await members.pool.sample(ASKED)).versions] == [1]

    asyncio.run(members.run(work()))


def test_a_member_that_ends_meanwhile_is_started_after_the_others_woke_with_the_new_weights() -> None:
    members = Members(2)

    async def work() -> None:
        await members.pool.start()
        await members.pool.sleep()
        members.all[0].kill()
        await until(lambda: members.all[0].stops)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(members.all[0].engines) == 1, "the learner has its device"
        await members.pool.wake(UPDATE)
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)
        assert members.all[0].engine.updates == [UPDATE]
        assert members.all[0].engine.version == 1

    asyncio.run(members.run(work()))


def test_a_member_that_does_not_sleep_is_stopped_before_the_learner_begins() -> None:
    members = Members(2)

    async def work() -> None:
        await members.pool.start()
        members.all[1].refuses_to_sleep = EngineError("no sleep mode")
        assert await members.pool.sleep() == SLEPT_BYTES
        assert members.all[1].stops
        assert "it does not sleep: no sleep mode" in members.pool.waiting_for()
        await members.pool.wake(UPDATE)
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)
        assert members.all[1].engine.version == 1

    asyncio.run(members.run(work()))


def test_a_member_that_is_starting_is_waited_for_and_sleeps_too() -> None:
    members = Members(2)

    async def work() -> None:
        await members.pool.start()
        members.all[0].may_start.clear()
        members.all[0].kill()
        await until(lambda: members.pool.metrics()["engine/restarts"] == 1)
        sleeping = asyncio.create_task(members.pool.sleep())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not sleeping.done()
        members.all[0].may_start.set()
        assert await sleeping == 2 * SLEPT_BYTES
        assert members.all[0].engine.did == ["sleep"]

    asyncio.run(members.run(work()))


def test_a_member_that_does_not_wake_is_started_again_with_the_new_weights() -> None:
    members = Members(2)

    async def work() -> None:
        await members.pool.start()
        await members.pool.sleep()

        async def fail(_: WeightUpdate) -> None:
            members.all[0].loading = members.all[1].loading
            raise EngineError("out of memory")

        members.all[0].loading = fail
        await members.pool.wake(UPDATE)
        await until(lambda: len(members.all[0].engines) == 2)
        await until(lambda: members.pool.metrics()["engine/healthy"] == 2)
        assert members.all[0].engine.version == 1

    asyncio.run(members.run(work()))
