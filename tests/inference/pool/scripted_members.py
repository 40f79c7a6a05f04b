"""Engines in this process that draw the next token by a rule, and end, refuse and hang when a test wants it.

The token after a sequence depends on the sequence alone, so an answer that was continued elsewhere is that of an engine
which was never interrupted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from whet.errors import EndpointDownError
from whet.inference.pool.engine_pool import EnginePool
from whet.inference.pool.health import RestartPolicy
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, SamplingParams, VersionRun, WeightUpdate
from whet.inference.requests import SampleLostError, check_adapter

SLEPT_BYTES = 1000
STOPPED = "it was stopped"
"""By the pool itself, which is no failure."""
AT_ONCE = RestartPolicy(max_restarts=100, first_pause_s=0.0, longest_pause_s=0.0)


def request(prompt: Iterable[int] = (1, 2, 3), max_tokens: int = 12, **fields: Any) -> SampleRequest:
    stops = fields.pop("stop_token_ids", ())
    return SampleRequest(list(prompt), SamplingParams(max_tokens=max_tokens, seed=7, stop_token_ids=stops), **fields)


def drawn_after(ids: list[int]) -> tuple[int, float]:
    """The token after `ids` and its logprob."""
    digest = hashlib.blake2b(repr(ids).encode(), digest_size=8).digest()
    return 100 + digest[0], -digest[1] / 256


def answer_of(asked: SampleRequest) -> tuple[list[int], list[float]]:
    """Ids and logprobs of the whole answer."""
    ids: list[int] = []
    logprobs: list[float] = []
    while len(ids) < asked.params.max_tokens and not (ids and ids[-1] in asked.params.stop_token_ids):
        token, logprob = drawn_after(asked.prompt_ids + ids)
        ids.append(token)
        logprobs.append(logprob)
    return ids, logprobs


class ScriptedEngine(Engine):
    recomputes = True

    def __init__(self, member: ScriptedMember) -> None:
        self.version = 0
        self.adapters: dict[str, int] = {}
        self.did: list[Any] = []  # updates and requests, in order
        self.in_flight = 0
        self.released: list[str] = []
        self.behind: list[tuple[int, int]] = []  # versions of it and of the pool where a request came with others
        self._member = member

    async def sample(self, asked: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        member = self._member
        self.did.append(asked)
        if member.pool is not None and self.version != member.pool.version:
            self.behind.append((self.version, member.pool.version))
        if member.refuses is not None:
            raise member.refuses
        if asked.adapter is not None:
            check_adapter(asked.adapter, self.adapters)
        self.in_flight += 1
        sample = Sample([], [], [], "length")
        try:
            while len(sample.ids) < asked.params.max_tokens and sample.finish_reason != "stop":
                await self._turn(len(sample.ids))
                token, logprob = drawn_after(asked.prompt_ids + sample.ids)
                version = self.version if asked.adapter is None else self.adapters[asked.adapter]
                sample.ids.append(token)
                sample.logprobs.append(logprob)
                before = (
                    sample.versions.pop().count if sample.versions and sample.versions[-1].version == version else 0
                )
                sample.versions.append(VersionRun(version, before + 1))
                if token in asked.params.stop_token_ids:
                    sample.finish_reason = "stop"
                if on_tokens is not None:
                    on_tokens([token])
            await self._turn(len(sample.ids))
        except EndpointDownError as error:
            if sample.ids and on_tokens is not None and member.knows_parts:
                raise SampleLostError(str(error), sample) from None
            raise
        finally:
            self.in_flight -= 1
        return sample

    async def _turn(self, drawn: int) -> None:
        member = self._member
        while True:
            await asyncio.sleep(0)
            if member.cause is not None and not member.hangs:
                raise EndpointDownError("the connection was closed")
            if member.cause is None and (member.holds_at is None or drawn < member.holds_at):
                return

    async def load_weights(self, update: WeightUpdate) -> None:
        self.did.append(update)
        await self._member.loading(update)
        if update.adapter is None:
            self.version = update.version
        else:
            self.adapters[update.adapter] = update.version

    async def sleep(self) -> int:
        if self._member.refuses_to_sleep is not None:
            raise self._member.refuses_to_sleep
        self.did.append("sleep")
        return SLEPT_BYTES

    async def wake(self, update: WeightUpdate) -> None:
        assert self.did[-1] == "sleep"
        self.did.append("wake")
        await self.load_weights(update)

    async def unload_adapter(self, name: str) -> None:
        self.did.append(name)
        del self.adapters[name]

    async def release(self, rollout_key: str) -> None:
        self.released.append(rollout_key)

    async def close(self) -> None: ...

    def answer_lengths(self) -> list[int]:
        return [3] * self.in_flight

    @property
    def requests(self) -> list[SampleRequest]:
        return [each for each in self.did if isinstance(each, SampleRequest)]

    @property
    def updates(self) -> list[WeightUpdate]:
        return [each for each in self.did if isinstance(each, WeightUpdate)]


async def _nothing(update: WeightUpdate) -> None: ...


class ScriptedMember:
    """Starts a new engine each time. What a test sets applies to the engine of now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pool: EnginePool | None = None
        self.engines: list[ScriptedEngine] = []
        self.stops = 0
        self.cause: str | None = None  # of the end of the engine of now
        self.holds_at: int | None = None  # answers stand still after so many tokens
        self.refuses: Exception | None = None
        self.refuses_to_sleep: Exception | None = None
        self.hangs = False  # requests of an engine that has ended are not ended by it
        self.knows_parts = True
        self.fails_to_start: list[Exception] = []
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.loading: Callable[[WeightUpdate], Awaitable[None]] = _nothing

    async def start(self) -> ScriptedEngine:
        await self.may_start.wait()
        if self.fails_to_start:
            raise self.fails_to_start.pop(0)
        self.cause, self.holds_at = None, None
        self.engines.append(ScriptedEngine(self))
        return self.engine

    async def stop(self) -> None:
        self.stops += 1
        self.cause = self.cause or STOPPED

    def failure(self) -> str | None:
        return self.cause if self.engines and self.cause != STOPPED else None

    def kill(self) -> None:
        self.cause = "it was killed by SIGKILL"

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines[-1]


class Members:
    """Some members and the pool over them."""

    def __init__(self, count: int = 3, **options: Any) -> None:
        self.all = [ScriptedMember(str(number)) for number in range(count)]
        self.pool = EnginePool(self.all, **{"restarts": AT_ONCE, **options})
        for member in self.all:
            member.pool = self.pool

    def with_requests(self) -> list[ScriptedMember]:
        return [member for member in self.all if member.engines and member.engine.in_flight]

    async def run(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        finally:
            await self.pool.close()
            assert not [engine.behind for member in self.all for engine in member.engines if engine.behind]


async def until(condition: Callable[[], Any]) -> None:
    """Wait for it; a test's time limit ends what never comes."""
    while not condition():
        await asyncio.sleep(0)
