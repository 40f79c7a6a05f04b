"""Never more than so many sandboxes at once, in the order in which they were asked for.

    waiting ──a place is free──▶ creating ──retried when the host fails──▶ leased ──released, closed, expired──▶ gone

A sandbox is used by one lease and never handed on: what code left in it is nobody else's to find. A sandbox that
reaches its idle or absolute limit closes itself and gives up its place at the end of its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from whet.errors import ConfigError, SandboxError
from whet.sandboxes.protocol import Sandbox, SandboxBackend, SandboxSpec


class SandboxPool:
    """Leases of one backend's sandboxes. Belongs to one event loop."""

    def __init__(
        self,
        backend: SandboxBackend,
        max_sandboxes: int = 64,
        attempts: int = 3,
        delay_s: float = 0.5,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        for name, value in (("max_sandboxes", max_sandboxes), ("attempts", attempts)):
            if value < 1:
                raise ConfigError(f"sandbox pool: {name}={value} should be at least 1.")
        self._backend = backend
        self._places = asyncio.Semaphore(max_sandboxes)  # wakes its waiters first come, first served
        self._attempts = attempts
        self._delay_s = delay_s
        self._sleep = sleep
        self._leased: dict[str, Sandbox] = {}
        self._waiting = 0
        self._closed = False

    @property
    def leased(self) -> int:
        return len(self._leased)

    @property
    def waiting(self) -> int:
        return self._waiting

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        """A new sandbox once there is a place. Raises SandboxError when its creation failed `attempts` times."""
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            sandbox = await self._create(spec)
        except BaseException:
            self._places.release()
            raise
        self._leased[sandbox.id] = sandbox
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        """Close a sandbox and let the next one be made. Its place is free even when closing fails."""
        if self._leased.pop(sandbox.id, None) is None:
            return
        try:
            await sandbox.close()
        finally:
            self._places.release()

    @asynccontextmanager
    async def lease(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """A sandbox for the length of an `async with`."""
        sandbox = await self.acquire(spec)
        try:
            yield sandbox
        finally:
            await asyncio.shield(self.release(sandbox))

    async def close(self) -> None:
        """Close every sandbox and refuse new ones."""
        self._closed = True
        ends = await asyncio.gather(*map(self.release, list(self._leased.values())), return_exceptions=True)
        failed = [end for end in ends if isinstance(end, BaseException)]
        if failed:
            raise failed[0]

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        for attempt in range(1, self._attempts + 1):
            if self._closed:
                raise SandboxError("the sandbox pool is closed.")
            try:
                return await self._backend.create(spec)
            except SandboxError:
                if attempt == self._attempts:
                    raise
            await self._sleep(self._delay_s * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")
