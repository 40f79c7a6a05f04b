"""A limit for a peer counts the time in which the loop runs."""

import asyncio
import time

import pytest

from whet.system import peer_timeout as module
from whet.system.peer_timeout import peer_timeout


def test_a_peer_that_says_nothing_times_out():
    async def wait():
        async with peer_timeout(0.02):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(wait())


@pytest.mark.parametrize(("limit", "in_time"), [(peer_timeout, True), (asyncio.timeout, False)])
def test_a_loop_that_stood_still_reads_before_the_limit_counts(monkeypatch, limit, in_time):
    monkeypatch.setattr(module, "LOOK_S", 0.02)

    async def read():
        async with limit(0.06):
            asyncio.get_running_loop().call_soon(time.sleep, 0.2)
            for _ in range(10):  # rounds of the loop in which bytes are read and tasks go on
                await asyncio.sleep(0)
        return True

    async def outcome():
        try:
            return await read()
        except TimeoutError:
            return False

    assert asyncio.run(outcome()) is in_time


def test_an_error_of_the_block_is_its_own():
    async def fail():
        async with peer_timeout(1):
            raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        asyncio.run(fail())
