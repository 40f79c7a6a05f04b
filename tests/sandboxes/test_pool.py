"""The pool: a hard cap, first come first served, creation retried. Its sandboxes are fakes: the queue is tested."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from whet.errors import ConfigError, SandboxError
from whet.sandboxes.pool import SandboxPool
from whet.sandboxes.protocol import SandboxSpec

SPEC = SandboxSpec()


class FakeSandbox:
    def __init__(self, backend: FakeBackend, number: int, fails_to_close: bool = False) -> None:
        self.id = f"fake-{number}"
        self.backend = backend
        self.fails_to_close = fails_to_close

    async def close(self) -> None:
        self.backend.open -= 1
        if self.fails_to_close:
            raise SandboxError("stuck")


class FakeBackend:
    name = "fake"

    def __init__(self, failures: int = 0, fails_to_close: bool = False) -> None:
        self.failures = failures
        self.fails_to_close = fails_to_close
        self.open = self.most = self.made = 0

    async def check(self) -> None:
        return

    async def create(self, spec: SandboxSpec) -> Any:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise SandboxError("the host is out of something")
        self.made += 1
        self.open += 1
        self.most = max(self.most, self.open)
        return FakeSandbox(self, self.made, self.fails_to_close)


async def no_wait(seconds: float) -> None:
    await asyncio.sleep(0)


def test_never_more_sandboxes_than_the_cap_are_open() -> None:
    backend = FakeBackend()

    async def run() -> None:
        pool = SandboxPool(backend, max_sandboxes=3)

        async def use() -> None:
            async with pool.lease(SPEC):
                await asyncio.sleep(0)

        await asyncio.gather(*(use() for _ in range(20)))

    asyncio.run(run())
    assert (backend.made, backend.most, backend.open) == (20, 3, 0)


def test_who_asks_first_is_served_first() -> None:
    order: list[int] = []

    async def run() -> None:
        pool = SandboxPool(FakeBackend(), max_sandboxes=1)

        async def use(number: int) -> None:
            async with pool.lease(SPEC):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(use(number) for number in range(10)))

    asyncio.run(run())
    assert order == list(range(10))


def test_a_failed_creation_is_tried_again_with_growing_delays() -> None:
    delays: list[float] = []

    async def remember(seconds: float) -> None:
        delays.append(seconds)

    async def run() -> None:
        pool = SandboxPool(FakeBackend(failures=2), attempts=3, delay_s=1.0, sleep=remember)
        async with pool.lease(SPEC) as sandbox:
            assert sandbox.id == "fake-1"

    asyncio.run(run())
    assert delays == [1.0, 2.0]


def test_after_the_last_attempt_the_error_is_raised_and_the_place_is_free() -> None:
    async def run() -> None:
        pool = SandboxPool(FakeBackend(failures=3), max_sandboxes=1, attempts=3, sleep=no_wait)
        with pytest.raises(SandboxError, match="out of something"):
            await pool.acquire(SPEC)
        async with pool.lease(SPEC):
            assert pool.leased == 1

    asyncio.run(run())


def test_a_place_is_free_even_when_closing_fails() -> None:
    async def run() -> None:
        pool = SandboxPool(FakeBackend(fails_to_close=True), max_sandboxes=1)
        for _ in range(2):
            sandbox = await pool.acquire(SPEC)
            with pytest.raises(SandboxError, match="stuck"):
                await pool.release(sandbox)

    asyncio.run(run())


def test_giving_up_while_waiting_takes_no_place() -> None:
    async def run() -> None:
        pool = SandboxPool(FakeBackend(), max_sandboxes=1)
        first = await pool.acquire(SPEC)
        waiting = asyncio.ensure_future(pool.acquire(SPEC))
        await asyncio.sleep(0)
        assert pool.waiting == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await pool.release(first)
        await pool.release(await pool.acquire(SPEC))
        assert (pool.waiting, pool.leased) == (0, 0)

    asyncio.run(run())


def test_a_closed_pool_closes_its_sandboxes_and_makes_no_more() -> None:
    backend = FakeBackend()

    async def run() -> None:
        pool = SandboxPool(backend)
        await pool.acquire(SPEC)
        await pool.acquire(SPEC)
        await pool.close()
        with pytest.raises(SandboxError, match="pool is closed"):
            await pool.acquire(SPEC)

    asyncio.run(run())
    assert backend.open == 0


def test_a_pool_of_no_sandboxes_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="max_sandboxes=0"):
        SandboxPool(FakeBackend(), max_sandboxes=0)
