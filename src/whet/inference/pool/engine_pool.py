"""`EnginePool`: several engines as one `Engine`, of any kind, also of different kinds.

Requests are placed by `placement.py`, each engine is kept by `member.py`, and has the weights of `LatestWeights`
before it takes a request. A request whose engine is lost is continued on another, after what the caller has received;
where that is nothing, it is sent again as it was. While fewer than `min_healthy` engines are up requests wait;
when too many have had their last restart, they fail.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from whet.errors import (
    ConfigError,
    ContentFilterError,
    EndpointDownError,
    EngineError,
    Error,
    ModelError,
    OverlongPromptError,
    RequestRefusedError,
    WhetError,
)
from whet.inference.pool.health import MemberReport, RestartPolicy, hopeless_text, pool_metrics, waiting_text
from whet.inference.pool.member import FAILURES, KeptMember, PoolMember, is_refusal
from whet.inference.pool.placement import EngineAffinity, LatestWeights
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WeightUpdate
from whet.inference.requests import SampleLostError, check_adapter, completed, joined, remaining

_log = logging.getLogger(__name__)

OF_THE_REQUEST = (RequestRefusedError, OverlongPromptError, ContentFilterError)
"""Errors that any engine would answer this request with."""
MOST_LOSSES = 5
"""Engines that a request may be lost with: it may be what they end of."""


class EnginePool(Engine):
    """See `whet.inference.protocol.Engine`. Members are started with the first call, or by `start`."""

    def __init__(
        self,
        members: Sequence[PoolMember],
        *,
        min_healthy: int = 1,
        restarts: RestartPolicy | None = None,
        version: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`version` is that of the weights which members start with."""
        names = [member.name for member in members]
        assert len(set(names)) == len(names) > 0, names
        if not 1 <= min_healthy <= len(members):
            raise ConfigError(
                f"min_healthy = {min_healthy} is not possible with {len(members)} engines. Set it to 1 or more, and at "
                "most to their number."
            )
        self.version = version
        self._latest = LatestWeights(version)
        self._min_healthy = min_healthy
        restarts = restarts or RestartPolicy()
        self._awake = asyncio.Event()
        self._awake.set()
        self._members = {
            member.name: KeptMember(member, restarts, lambda: self._latest, self._change, self._awake, clock=clock)
            for member in members
        }
        self._placement = EngineAffinity()
        self._changed = asyncio.Event()
        self._asking = 0
        self._ordering = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._starting: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None  # of a task
        self._short = False  # whether it was said that too few are up
        self._closed = False

    @property
    def recomputes(self) -> bool:
        """Whether all members do. What is continued on another member is computed anew in any case."""
        return all(member.recomputes for member in self._members.values())

    async def start(self) -> None:
        """Start all members and wait until each is up or has failed once. Has an effect once.

        Raises what the first one failed with where fewer than `min_healthy` are up then.
        """
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        """Raises `EngineError` when no member will be up again, and the last failure of a request lost too often."""
        if not self._awake.is_set():
            raise ModelError("the engines sleep")
        self._asking += 1
        try:
            await self.start()
            return await self._sample(request, on_tokens)
        finally:
            self._asking -= 1

    async def load_weights(self, update: WeightUpdate) -> None:
        """Returns when each member that is up has them; one that does not take them is restarted.

        Raises what the members raise where all refuse the update: they continue with the weights they have.
        """
        await self._reach(lambda latest: latest.with_update(update))

    async def sleep(self) -> int:
        """See `Engine`. A member that does not sleep is stopped; those that are down stay so until `wake`."""
        await self.start()
        async with self._ordering:
            self._awake.clear()
            while any(member.state == "starting" for member in self._members.values()):
                await self._changed.wait()
            return sum(await asyncio.gather(*(member.sleep() for member in self._up_members())))

    async def wake(self, update: WeightUpdate) -> None:
        """See `Engine`. A member that does not wake is restarted, as those that ended meanwhile."""
        try:
            await self._reach(lambda latest: latest.with_update(update), KeptMember.wake)
        finally:
            self._awake.set()

    async def unload_adapter(self, name: str) -> None:
        """See `Engine`."""
        check_adapter(name, self._latest.adapters)
        await self._reach(lambda latest: latest.without(name))

    async def release(self, rollout_key: str) -> None:
        name = self._placement.release(rollout_key)
        if name is None:
            return
        try:
            await self._members[name].release(rollout_key)
        except (Error, WhetError) as error:
            self._members[name].note_failure(error)

    async def close(self) -> None:
        """End all members. Requests in flight fail with a `ModelError`."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._change()
        await asyncio.gather(*(member.end() for member in self._members.values()))

    def answer_lengths(self) -> list[int]:
        """Tokens so far of each answer that is being sampled; may be called from another thread."""
        return [length for member in self._members.values() for length in member.answer_lengths()]

    def waiting_for(self) -> str:
        """Which engines are down, why, and when they are back; "" where none is. May be called from another thread."""
        return waiting_text(self._reports(), self._min_healthy)

    def metrics(self) -> dict[str, float]:
        """`engine/...`, see docs/training.md."""
        return pool_metrics(self._reports(), self._asking)

    async def _start(self) -> None:
        for member in self._members.values():
            task = asyncio.create_task(member.keep(), name=f"whet engine {member.name}")
            task.add_done_callback(self._note_end)
            self._tasks.append(task)
        await asyncio.gather(*(member.tried.wait() for member in self._members.values()))
        errors = [member.start_error for member in self._members.values() if member.start_error is not None]
        if errors and self._up() < self._min_healthy:
            await self.close()
            raise errors[0]
        for member in self._members.values():
            member.accepted.set()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._change()

    async def _sample(self, request: SampleRequest, on_tokens: OnTokens | None) -> Sample:
        parts: list[Sample] = []
        rest, lost_on = request, list[str]()
        while True:
            heard = None if on_tokens is None else _Heard(on_tokens)
            async with self._placed(rest, lost_on) as member:
                try:
                    last = await member.sample(rest, heard)
                    return joined(*parts, last) if parts else last
                except OF_THE_REQUEST:
                    raise
                except (ModelError, WhetError) as error:
                    if heard is not None and heard.raised is error:
                        raise
                    member.note_failure(error)
                    lost_on.append(member.name)
                    if len(lost_on) == MOST_LOSSES:
                        raise
                    part = _part(error, heard)
            if part is not None and part.ids:
                parts.append(part)
                so_far = joined(*parts)
                if (whole := completed(request, so_far)) is not None:
                    return whole
                rest = remaining(request, so_far.ids)

    @asynccontextmanager
    async def _placed(self, request: SampleRequest, lost_on: Iterable[str]) -> AsyncIterator[KeptMember]:
        """A member that may answer `request`, and of which it is a load within; another than those, where there is."""
        while True:
            await self._enough_up()
            loads = {name: member.tokens for name, member in self._members.items() if member.state == "up"}
            others = {name: load for name, load in loads.items() if name not in lost_on}
            member = self._members[self._placement.choose(request, others or loads)]
            with member.reserved(request):
                if await self._is_current(member, request.adapter):
                    yield member
                    return

    async def _enough_up(self) -> None:
        """Wait until requests may be sent."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise ModelError("the engines were closed while requests were waiting")
            if (up := self._up()) >= self._min_healthy:
                if self._short:
                    self._short = False
                    _log.warning("%d of %d engines are up: requests continue", up, len(self._members))
                return
            if (reason := hopeless_text(self._reports(), self._min_healthy)) is not None:
                raise EngineError(reason)
            if not self._short:
                self._short = True
                _log.warning("requests wait until %d engines are up: %s", self._min_healthy, self.waiting_for())
            await self._changed.wait()

    async def _is_current(self, member: KeptMember, adapter: str | None) -> bool:
        """Wait until it has the weights that a request needs; False where it ends first."""
        while member.state == "up":
            if adapter is not None:
                check_adapter(adapter, self._latest.adapters)
            if self._latest.answered_by(member.loaded, adapter):
                return True
            await self._changed.wait()
        return False

    async def _reach(
        self,
        change: Callable[[LatestWeights], LatestWeights],
        take: Callable[[KeptMember], Awaitable[None]] = KeptMember.take_weights,
    ) -> None:
        """Bring every member that is up to other weights; those that start meanwhile look for them themselves."""
        await self.start()
        async with self._ordering:
            before = self._latest
            self._set_latest(change(before))
            up = self._up_members()
            try:
                outcomes = await asyncio.gather(*(take(member) for member in up), return_exceptions=True)
            except asyncio.CancelledError:
                for member in up:
                    if self._latest.next_for(member.loaded) is not None:
                        member.fail("it had not taken new weights when the run gave up waiting for it")
                raise
            failed = [(member, error) for member, error in zip(up, outcomes, strict=True) if error is not None]
            for _, error in failed:
                if not isinstance(error, FAILURES):
                    raise error
            if failed and len(failed) == len(up) and all(is_refusal(error) for _, error in failed):
                self._set_latest(before)
                raise failed[0][1]
            for member, error in failed:
                member.fail(f"it does not take new weights: {error}")

    def _set_latest(self, latest: LatestWeights) -> None:
        self._latest, self.version = latest, latest.version
        self._change()

    def _change(self) -> None:
        """Wake what waits for a member's state or weights to be others."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _up(self) -> int:
        return len(self._up_members())

    def _up_members(self) -> list[KeptMember]:
        return [member for member in self._members.values() if member.state == "up"]

    def _reports(self) -> list[MemberReport]:
        return [member.report() for member in self._members.values()]


class _Heard:
    """Passes on what a caller listens to, and remembers it."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self.ids: list[int] = []
        self.raised: Exception | None = None
        self._on_tokens = on_tokens

    def __call__(self, ids: list[int]) -> None:
        self.ids += ids
        try:
            self._on_tokens(ids)
        except Exception as error:
            self.raised = error
            raise


def _part(error: Exception, heard: _Heard | None) -> Sample | None:
    """What of an answer is kept that was lost with `error`. Raises where the caller has what is not known here."""
    part = error.part if isinstance(error, SampleLostError) else None
    if heard is not None and heard.ids != ([] if part is None else part.ids):
        raise EndpointDownError(
            f"{error}; the answer cannot be continued, since the log-probabilities of its first {len(heard.ids)} "
            "tokens are lost as well"
        ) from error
    return part
