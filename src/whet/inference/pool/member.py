"""One engine of a pool, from its first start to its end: started, watched, given weights, stopped, started again.

    starting ──answers, has the weights──▶ up ──ended, or does not answer──▶ down ──pause──▶ starting
                                                                              └─no restart is left─▶ given up

One task has all of this in hand (`keep`); what others find wrong they report to it (`fail`, `note_failure`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Protocol

from whet.errors import EndpointDownError, EngineError, Error, ModelError, ModelLoadError, WhetError
from whet.inference.pool.health import MemberReport, MemberState, RestartPolicy
from whet.inference.pool.placement import LatestWeights, weight_of
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WeightUpdate

_log = logging.getLogger(__name__)

FAILURES = (WhetError, Error, OSError)
"""What a start, a stop or a load may raise; anything else is a mistake of the program."""
LOOK_S = 0.25
"""Seconds between two looks at whether an engine has ended."""
CAUSE_WITHIN_S = 1.0
"""Seconds that an engine which does not answer has to show why it has ended."""
CUT_AFTER_S = 1.0
"""Seconds that requests of an engine which was stopped have to fail by themselves, with what is known of them."""
STRIKES = 3
"""Requests that fail in a row, before an engine that has not ended counts as down."""


class PoolMember(Protocol):
    """What a pool needs of an engine and of what that runs on."""

    @property
    def name(self) -> str:
        """In messages ("engine 1") and in names of metrics; each member has another one."""

    async def start(self) -> Engine:
        """Start what the engine runs on, again where it has ended, and wait until it answers.

        The engine has the weights that it starts with, and its first `version`. A `WhetError` says why it cannot.
        """

    async def stop(self) -> None:
        """End it, in whatever state it is: not started, half started, running, hanging, gone."""

    def failure(self) -> str | None:
        """Why it has ended, as in "it was killed by SIGKILL"; None while it runs. Called often: it returns at once."""


class KeptMember:
    """A member with the engine that it has now."""

    def __init__(
        self,
        member: PoolMember,
        restarts: RestartPolicy,
        latest: Callable[[], LatestWeights],
        changed: Callable[[], None],
        awake: asyncio.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`latest` gives the weights that it has to have, `changed` is called when `state` or weights are others.

        It is not started again while `awake` is not set: its device is the learner's then.
        """
        self.name = member.name
        self.state: MemberState = "starting"
        self.tokens = self.requests = 0  # of requests in flight
        self.restarts = 0
        self.loaded: dict[str | None, WeightUpdate] = {}
        self.start_error: Exception | None = None
        self.tried = asyncio.Event()  # once the first start has succeeded or failed
        self.accepted = asyncio.Event()  # set by the pool: a first start that failed is not what its start ends with
        self._member, self._policy, self._latest, self._changed, self._clock = member, restarts, latest, changed, clock
        self._awake = awake
        self._engine: Engine | None = None
        self._loading = asyncio.Lock()
        self._waits: set[asyncio.Timeout] = set()  # for the engine, ended with it
        self._strikes = 0
        self._fault: str | None = None
        self._reported = asyncio.Event()
        self._deaths: list[float] = []
        self._cause = ""
        self._restarts_at: float | None = None

    @property
    def recomputes(self) -> bool:
        """See `Engine`; False before there was one."""
        return self._engine is not None and self._engine.recomputes

    async def keep(self) -> None:
        """The task: until no restart is left. Raises what is no failure of an engine."""
        try:
            while True:
                cause = await self._live()
                self.fail(cause)
                self.tried.set()
                await self.accepted.wait()
                pause = self._die(cause)
                await self.end()
                if pause is None:
                    return
                await asyncio.sleep(pause)
                await self._awake.wait()
                self.restarts += 1
        finally:
            self.tried.set()

    async def end(self) -> None:
        """Stop what the engine runs on; what still waits for the engine fails."""
        try:
            await self._member.stop()
            if self._engine is not None:
                await self._engine.close()
        except FAILURES as error:
            _log.warning("engine %s cannot be stopped: %s", self.name, error)
        with suppress(TimeoutError):
            async with asyncio.timeout(CUT_AFTER_S):
                while self._waits:
                    await asyncio.sleep(0.01)
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())

    async def sample(self, request: SampleRequest, on_tokens: OnTokens | None) -> Sample:
        """As the engine's. Raises `EndpointDownError` where that ends without raising anything."""
        assert self._engine is not None
        async with self._while_it_lives():
            if on_tokens is None:
                sample = await self._engine.sample(request)
            else:
                sample = await self._engine.sample(request, on_tokens=on_tokens)
        self._strikes = 0
        return sample

    async def take_weights(self) -> None:
        """Load what is missing of the latest weights, which may become others meanwhile. Raises what loading raises."""
        async with self._loading:
            engine, loaded = self._engine, self.loaded
            assert engine is not None
            while (due := (latest := self._latest()).next_for(loaded)) is not None:
                try:
                    async with self._while_it_lives():
                        await (engine.unload_adapter(due) if isinstance(due, str) else engine.load_weights(due))
                except ModelLoadError:
                    if self._latest() is latest:
                        raise
                    continue  # newer weights have taken the place of this file
                if isinstance(due, str):
                    del loaded[due]
                else:
                    loaded[due.adapter] = due
            if engine.version != latest.version:
                raise EngineError(f"it has policy version {engine.version}, and the latest is {latest.version}")
        self._changed()

    async def sleep(self) -> int:
        """As the engine's. Where it does not, it is stopped, so that its device is free then."""
        assert self._engine is not None
        try:
            async with self._while_it_lives():
                return await self._engine.sleep()
        except FAILURES as error:
            self.fail(f"it does not sleep: {error}")
            await self.end()
            return 0

    async def wake(self) -> None:
        """Wake with the latest weights of the policy. Raises what waking raises."""
        async with self._loading:
            assert self._engine is not None
            latest = self._latest()
            update = latest.updates[None]
            async with self._while_it_lives():
                await self._engine.wake(update)
            self.loaded[None] = update
        self._changed()

    async def release(self, rollout_key: str) -> None:
        if self.state == "up" and self._engine is not None:
            async with self._while_it_lives():
                await self._engine.release(rollout_key)

    def note_failure(self, error: Exception) -> None:
        """A request failed in a way that is not its own fault: the engine has ended, or may have."""
        self._strikes += 1
        cause = self._member.failure()
        if cause is None and isinstance(error, WhetError):
            cause = str(error)
        elif cause is None and self._strikes >= STRIKES:
            cause = f"{self._strikes} requests failed one after the other, the last one with: {error}"
        if cause is not None:
            self.fail(cause)

    def fail(self, cause: str) -> None:
        """It takes no more requests, and is restarted. Has no effect on one that is not up."""
        if self.state == "up":
            self.state, self._fault, self._cause, self._restarts_at = "down", cause, cause, None
            self._reported.set()
            self._changed()

    @contextmanager
    def reserved(self, request: SampleRequest) -> Iterator[None]:
        """The request counts as load within."""
        weight = weight_of(request)
        self.tokens += weight
        self.requests += 1
        try:
            yield
        finally:
            self.tokens -= weight
            self.requests -= 1

    def report(self) -> MemberReport:
        """May be called from another thread."""
        engine, at = self._engine, self._restarts_at
        return MemberReport(
            self.name,
            self.state,
            self._cause,
            self.restarts,
            None if at is None else at - self._clock(),
            0 if engine is None else engine.version,
            self.requests,
            self._latest().answered_by(self.loaded, None),
        )

    def answer_lengths(self) -> list[int]:
        """As the engine's."""
        return self._engine.answer_lengths() if self._engine is not None and self.state == "up" else []

    async def _live(self) -> str:
        """One life of the engine: why it ended."""
        self.state, self._strikes, self._fault = "starting", 0, None
        self._reported.clear()
        self._changed()
        try:
            self._engine, self.loaded = await self._member.start(), {}
            await self.take_weights()
        except FAILURES as error:
            self.start_error = self.start_error or error
            return f"it did not start: {error}"
        self.state = "up"  # in the same turn of the event loop as the last look at what the latest weights are
        self._changed()
        self.tried.set()
        if self._deaths:
            ago = self._clock() - self._deaths[-1]
            _log.warning("engine %s is up again, %.0f s later, with version %d", self.name, ago, self._latest().version)
        return await self._ended()

    async def _ended(self) -> str:
        """Wait until it has ended, or was reported to have; why."""
        while self._fault is None:
            if (cause := self._member.failure()) is not None:
                return cause
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._reported.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(CAUSE_WITHIN_S):
                while (cause := self._member.failure()) is None:
                    await asyncio.sleep(0.01)
                return cause
        return self._fault

    def _die(self, cause: str) -> float | None:
        """Seconds until it is started again."""
        self._deaths.append(self._clock())
        self._cause = cause
        pause = self._policy.pause(self._deaths)
        if pause is None:
            self.state, then = "given up", f"it is not restarted any more (restarts: {self.restarts})"
        else:
            self.state, self._restarts_at = "down", self._deaths[-1] + pause
            then = f"it is restarted in {pause:g} s, number {self.restarts + 1}"
        _log.warning("engine %s is down: %s; %s", self.name, cause, then)
        self._changed()
        return pause

    @asynccontextmanager
    async def _while_it_lives(self) -> AsyncIterator[None]:
        """Waiting within ends with an `EndpointDownError` when the engine does."""
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if not wait.expired():
                raise
            raise EndpointDownError(f"engine {self.name} was stopped before it had answered") from None


def is_refusal(error: BaseException) -> bool:
    """Whether an engine refused what it was given, and continues as it was, rather than failed."""
    return isinstance(error, ModelLoadError) or (
        isinstance(error, ModelError) and not isinstance(error, EndpointDownError)
    )
