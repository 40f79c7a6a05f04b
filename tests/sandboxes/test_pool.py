"""The pool: a hard cap, owners in turn, creation retried, what is forgotten. Its sandboxes are fakes.

The same with real sandboxes of environments that share a cap: test_shared_pool.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from whet.errors import ConfigError, SandboxError
from whet.sandboxes import pool as pool_module
from whet.sandboxes.permits import Permits
from whet.sandboxes.pool import SandboxPool, set_max_sandboxes, shared_pool
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


def test_large_request_does_not_delay_another_owner() -> None:
    order: list[str] = []

    async def run() -> None:
        pool = SandboxPool(FakeBackend(), max_sandboxes=2)

        async def use(owner: str) -> None:
            async with pool.lease(SPEC, owner=owner):
                order.append(owner)
                await asyncio.sleep(0)

        greedy = [asyncio.ensure_future(use("greedy")) for _ in range(1000)]
        await asyncio.sleep(0)
        await use("modest")
        await asyncio.gather(*greedy)

    asyncio.run(run())
    assert len(order) == 1001
    assert order.index("modest") <= 4, "after those that had a place already, and one turn"


def test_two_pools_may_share_one_cap() -> None:
    one, other = FakeBackend(), FakeBackend()
    most = 0

    async def run() -> None:
        permits = Permits(3)

        async def use(pool: SandboxPool) -> None:
            nonlocal most
            async with pool.lease(SPEC, owner=pool):
                most = max(most, one.open + other.open)
                await asyncio.sleep(0)

        pools = [SandboxPool(backend, permits=permits) for backend in (one, other)]
        await asyncio.gather(*(use(pool) for _ in range(10) for pool in pools))

    asyncio.run(run())
    assert (one.made, other.made, most) == (10, 10, 3)


def test_unreleased_sandbox_frees_its_slot_after_its_lifetime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "OVERTIME_S", 0.0)

    async def run() -> None:
        pool = SandboxPool(FakeBackend(), max_sandboxes=1)
        await pool.acquire(SandboxSpec(lifetime_s=0.01))
        await pool.acquire(SPEC)
        assert pool.leased == 1

    asyncio.run(run())


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


def test_attempts_and_delay_may_be_those_of_one_request() -> None:
    backend = FakeBackend(failures=10)
    delays: list[float] = []

    async def remember(seconds: float) -> None:
        delays.append(seconds)

    async def run() -> None:
        pool = SandboxPool(backend, sleep=remember)
        with pytest.raises(SandboxError, match="out of something"):
            await pool.acquire(SPEC, attempts=5, delay_s=2.0)

    asyncio.run(run())
    assert (backend.failures, delays) == (5, [2.0, 4.0, 8.0, 16.0])


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


def test_the_shared_pool_is_one_per_event_loop_and_backend() -> None:
    async def run() -> SandboxPool:
        assert shared_pool("subprocess") is shared_pool("subprocess")
        assert shared_pool("subprocess") is not shared_pool("docker")
        return shared_pool("subprocess")

    assert asyncio.run(run()) is not asyncio.run(run())


def test_the_shared_cap_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_permits", None)
    monkeypatch.setattr(pool_module, "_pools", {})
    monkeypatch.setenv("WHET_MAX_SANDBOXES", "1")

    async def run() -> None:
        pool = shared_pool("subprocess")
        first = await pool.acquire(SPEC)
        second = asyncio.ensure_future(pool.acquire(SPEC))
        await asyncio.sleep(0)
        assert (pool.leased, pool.waiting) == (1, 1)
        set_max_sandboxes(2)
        for sandbox in (await second, first):
            await pool.release(sandbox)

    asyncio.run(run())


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_shared_cap_that_is_no_number_is_a_mistake(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(pool_module, "_permits", None)
    monkeypatch.setenv("WHET_MAX_SANDBOXES", text)

    async def run() -> None:
        shared_pool("subprocess")

    with pytest.raises(ConfigError, match=r"WHET_MAX_SANDBOXES=.*should be a whole number"):
        asyncio.run(run())
