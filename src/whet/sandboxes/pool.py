"""Leases of sandboxes: a cap on concurrent sandboxes, owners in turn, creation retried.

    waiting ──a slot is free──▶ creating ──retried when the host fails──▶ leased ──released or expired──▶ gone

A sandbox is used by one lease and never reused, so that no other code finds what was left in it. A lease ends at its
sandbox's absolute limit even when its holder does not release it, so that no slot leaks.

`shared_pool` is what environments use: all of a process share one cap, so ten environments in a group together have
no more sandboxes than one. An environment passes itself as `owner`, and the next slot goes to the owner whose turn it
is; a request for a thousand does not delay another owner's request for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from whet.errors import ConfigError, SandboxError
from whet.sandboxes.permits import Permit, Permits
from whet.sandboxes.protocol import Sandbox, SandboxBackend, SandboxSpec
from whet.sandboxes.registry import default_backend, get_backend

_log = logging.getLogger(__name__)
MAX_SANDBOXES = 64
VARIABLE = "WHET_MAX_SANDBOXES"
DELAY_S = 0.5  # before the second attempt to make a sandbox; doubles with each further one
OVERTIME_S = 5.0  # after its absolute limit a sandbox has closed itself; then its slot is reclaimed


@dataclass(slots=True)
class _Lease:
    sandbox: Sandbox
    permit: Permit
    overdue: asyncio.TimerHandle


class SandboxPool:
    """Leases of one backend's sandboxes. Belongs to one event loop; `permits` may be shared with pools of others."""

    def __init__(
        self,
        backend: SandboxBackend,
        max_sandboxes: int = MAX_SANDBOXES,
        attempts: int = 3,
        delay_s: float = DELAY_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        permits: Permits | None = None,
    ) -> None:
        for name, value in (("max_sandboxes", max_sandboxes), ("attempts", attempts)):
            if value < 1:
                raise ConfigError(f"sandbox pool: {name}={value} should be at least 1.")
        self._backend = backend
        self._permits = Permits(max_sandboxes) if permits is None else permits
        self._attempts = attempts
        self._delay_s = delay_s
        self._sleep = sleep
        self._leases: dict[str, _Lease] = {}
        self._waiting = 0
        self._closed = False

    @property
    def backend(self) -> SandboxBackend:
        return self._backend

    @property
    def leased(self) -> int:
        """Sandboxes of this pool that are in use."""
        return len(self._leases)

    @property
    def waiting(self) -> int:
        """Requests to this pool that wait for a slot."""
        return self._waiting

    @property
    def closed(self) -> bool:
        return self._closed

    async def acquire(
        self,
        spec: SandboxSpec,
        owner: Hashable = None,
        attempts: int | None = None,
        delay_s: float | None = None,
    ) -> Sandbox:
        """A new sandbox, once a slot is free and it is the owner's turn.

        `attempts` and `delay_s` replace the pool's own for this one. Raises SandboxError when its creation failed that
        often, and SandboxUnavailableError at once when the backend cannot run here at all.
        """
        self._waiting += 1
        try:
            permit = await self._permits.take(owner)
        finally:
            self._waiting -= 1
        try:
            sandbox = await self._create(
                spec, attempts or self._attempts, self._delay_s if delay_s is None else delay_s
            )
        except BaseException:
            self._permits.give_back(permit)
            raise
        permit.abandoned = getattr(sandbox, "abandon", None)
        overdue = asyncio.get_running_loop().call_later(spec.lifetime_s + OVERTIME_S, self._expire, sandbox)
        self._leases[sandbox.id] = _Lease(sandbox, permit, overdue)
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        """Close a sandbox and free its slot, even when closing fails."""
        lease = self._leases.pop(sandbox.id, None)
        if lease is None:
            return
        lease.overdue.cancel()
        try:
            await sandbox.close()
        finally:
            self._permits.give_back(lease.permit)

    @asynccontextmanager
    async def lease(self, spec: SandboxSpec, owner: Hashable = None) -> AsyncIterator[Sandbox]:
        """A sandbox for the length of an `async with`."""
        sandbox = await self.acquire(spec, owner)
        try:
            yield sandbox
        finally:
            await asyncio.shield(self.release(sandbox))

    async def close(self) -> None:
        """Close every sandbox and refuse new ones. Not for one owner of a shared pool."""
        self._closed = True
        sandboxes = [lease.sandbox for lease in self._leases.values()]
        ends = await asyncio.gather(*map(self.release, sandboxes), return_exceptions=True)
        failed = [end for end in ends if isinstance(end, BaseException)]
        if failed:
            raise failed[0]

    def _expire(self, sandbox: Sandbox) -> None:
        """Its holder has forgotten it; the sandbox has closed itself by now."""
        _log.warning("sandbox %s was not released by the end of its lifetime; its slot is reclaimed", sandbox.id)
        ending = asyncio.ensure_future(self.release(sandbox))
        ending.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _create(self, spec: SandboxSpec, attempts: int, delay_s: float) -> Sandbox:
        for attempt in range(1, attempts + 1):
            if self._closed:
                raise SandboxError("the sandbox pool is closed.")
            try:
                return await self._backend.create(spec)
            except SandboxError as error:
                if attempt == attempts:
                    raise
                _log.warning("attempt %d of %d to make a sandbox failed: %s", attempt, attempts, error)
            await self._sleep(delay_s * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")


_permits: Permits | None = None
_pools: dict[asyncio.AbstractEventLoop, dict[str, SandboxPool]] = {}
_lock = threading.Lock()


def shared_pool(backend: str | None = None) -> SandboxPool:
    """The running event loop's pool of a backend; all such pools of the process share one cap.

    `backend` is a name that `get_backend` takes; None is the default one. The cap is `WHET_MAX_SANDBOXES`, or 64, or
    what `set_max_sandboxes` said last.
    """
    name = backend or default_backend()
    with _lock:
        for loop in [loop for loop in _pools if loop.is_closed()]:
            del _pools[loop]
        pools = _pools.setdefault(asyncio.get_running_loop(), {})
        if name not in pools or pools[name].closed:
            pools[name] = SandboxPool(get_backend(name), permits=_shared_permits())
        return pools[name]


def set_max_sandboxes(limit: int) -> None:
    """How many sandboxes this process may have at once, over all environments and backends."""
    if limit < 1:
        raise ConfigError(f"the number of sandboxes at once is {limit} and should be at least 1.")
    with _lock:
        _shared_permits().resize(limit)


def _shared_permits() -> Permits:
    """With the lock held."""
    global _permits
    if _permits is None:
        _permits = Permits(_limit_from_environment())
    return _permits


def _limit_from_environment() -> int:
    text = os.environ.get(VARIABLE, str(MAX_SANDBOXES))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{VARIABLE}={text!r} in the environment should be a whole number of at least 1.")
    return int(text)
