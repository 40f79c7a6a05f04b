"""Samples: the policy in a thread and an event loop of its own, and answers in memory until they were fetched.

Sampling changes nothing, so nothing of it is in the log: after a kill an answer is gone, and clients send again.
Adapters of the states that are sampled from are in the engine beside its base; those whose last use is longest ago give
way to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tinker import types

from whet.errors import OverlongPromptError, RequestRefusedError, WhetError
from whet.hub.errors import HubError, not_found
from whet.inference.loading import Policy
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WeightUpdate
from whet.tinker.answer_box import AnswerBox
from whet.tinker.server import GIB, TinkerLimits

KEPT_BYTES = GIB // 4
"""Of answers that were not fetched lately; those that were there first are forgotten."""
LOOKED_AT = 64
"""Answers, the oldest ones, that are looked at with each request for whether to forget them."""
CLOSE_S = 30.0
logger = logging.getLogger(__name__)
OpenPolicy = Callable[[], contextlib.AbstractAsyncContextManager[Policy]]
"""Opens what is sampled, in the event loop where it is."""
Write = Callable[[list[Sample]], bytes]


@dataclass(frozen=True, slots=True)
class SampledState:
    """Weights that a client saved to sample from: the folder below `states/`, the bytes in it, and when they end."""

    folder: str
    size: int
    expires_at: float | None = None


@dataclass(slots=True, eq=False)
class _Answer:
    owner: str
    digest: str
    result: bytes | None = None  # None: it is being computed
    failed: bool = False
    done_at: float = 0.0
    work: Future[tuple[bytes, bool]] | None = None


class Sampling:
    """See above. Its methods are for any thread."""

    policy: Policy
    """Once `start` has returned."""

    def __init__(self, opening: OpenPolicy, states: Path, answers: AnswerBox, limits: TinkerLimits) -> None:
        self._opening, self._states, self._events, self._limits = opening, states, answers, limits
        self._closing = contextlib.AsyncExitStack()
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._waiting: Counter[str] = Counter()  # answers that are being computed, by owner
        self._kept = 0  # bytes of answers
        self._lock = threading.RLock()
        self._adapters: OrderedDict[str, asyncio.Task[None]] = OrderedDict()  # by folder, the last used last
        self._sizes: dict[str, int] = {}
        self._using: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="whet-tinker-sampler", daemon=True)

    def start(self) -> Policy:
        """Open the policy. Raises what that raises."""
        self._thread.start()
        try:
            self.policy = self._run(self._closing.enter_async_context(self._opening())).result()
        except BaseException:
            self.stop()
            raise
        return self.policy

    def stop(self) -> None:
        """Answers that are being computed are dropped."""
        with contextlib.suppress(TimeoutError):
            self._run(self._closing.aclose()).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def _engine(self) -> Engine:
        return self.policy.engine

    def submit(
        self,
        owner: str,
        id: str,
        digest: str,
        requests: list[SampleRequest],
        state: SampledState | None,
        write: Write,
    ) -> None:
        """Begin with a request, which may have been sent before; without a state the base model is sampled.

        `write` makes the answer. Raises `HubError` for another request of this id, and where too many wait.
        """
        with self._lock:
            self._forget_old()
            known = self._answers.get(id)
            if known is not None:
                if (known.owner, known.digest) != (owner, digest):
                    raise HubError("invalid", f"seq_id: {id} was another request before.")
                return
            self._count(owner)
            answer = self._answers[id] = _Answer(owner, digest)
            answer.work = self._run(self._carry_out(requests, state, write))
            answer.work.add_done_callback(partial(self._finish, id, answer))

    def _count(self, owner: str) -> None:
        with self._lock:
            if self._waiting[owner] >= self._limits.waiting:
                raise HubError("too_many", f"{self._limits.waiting} samples of {owner} are being computed already.")
            self._waiting[owner] += 1

    async def draw(
        self, owner: str, request: SampleRequest, state: SampledState | None, on_tokens: OnTokens | None = None
    ) -> Sample:
        """One sample for a caller in another event loop, who receives tokens there; see `Engine.sample`.

        Raises `HubError` where too many wait.
        """
        loop, raised = asyncio.get_running_loop(), list[Exception]()

        def receive(on_tokens: OnTokens, ids: list[int]) -> None:
            if not raised:
                try:
                    on_tokens(ids)
                except Exception as error:  # it ends the request
                    raised.append(error)
                    work.cancel()

        def pass_on(ids: list[int]) -> None:
            assert on_tokens is not None
            loop.call_soon_threadsafe(receive, on_tokens, ids)

        self._count(owner)
        work = self._run(self._draw(request, state, None if on_tokens is None else pass_on))
        try:
            return await asyncio.wrap_future(work)
        finally:
            with self._lock:
                self._waiting[owner] -= 1
            if raised:
                raise raised[0]

    async def _draw(self, request: SampleRequest, state: SampledState | None, on_tokens: OnTokens | None) -> Sample:
        async with self._loaded(state):
            request = replace(request, adapter=None if state is None else state.folder)
            return await self._engine.sample(request, on_tokens=on_tokens)

    def answer(self, owner: str, id: str) -> tuple[bytes, bool] | None:
        """The bytes of an answer and whether it is a failure; None while it is computed.

        Raises `HubError`: 410 where it is no longer kept or was lost with the process, 404 for one of another.
        """
        with self._lock:
            answer = self._answers.get(id)
            if answer is None:
                raise HubError("deleted", f"the answer to {id[:100]} is not kept any more; send the request again.")
            if answer.owner != owner:
                raise not_found(f"request {id[:100]}")
            return None if answer.result is None else (answer.result, answer.failed)

    def cancel(self, owner: str, id: str) -> None:
        """Stop computing an answer; unknown ones, and those of others, are ignored."""
        with self._lock:
            answer = self._answers.get(id)
        if answer is not None and answer.work is not None and answer.owner == owner:
            answer.work.cancel()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _forget_old(self) -> None:
        before = time.monotonic() - self._limits.answer_s
        for id, answer in list(islice(self._answers.items(), LOOKED_AT)):
            if answer.result is not None and (answer.done_at < before or self._kept > KEPT_BYTES):
                self._kept -= len(answer.result)
                del self._answers[id]

    async def _carry_out(
        self, requests: list[SampleRequest], state: SampledState | None, write: Write
    ) -> tuple[bytes, bool]:
        """The bytes of the answer, and whether it is a failure."""
        try:
            async with self._loaded(state):
                samples = await asyncio.gather(*(self._engine.sample(request) for request in requests))
            return write(samples), False
        except (RequestRefusedError, OverlongPromptError) as error:
            return _failure(str(error), "user"), True
        except WhetError as error:
            return _failure(str(error), "server"), True
        except Exception as error:
            logger.exception("an answer could not be sampled")
            return _failure(f"the answer could not be sampled ({type(error).__name__})", "server"), True

    def _finish(self, id: str, answer: _Answer, work: Future[tuple[bytes, bool]]) -> None:
        cancelled = _failure("the request was cancelled", "user"), True
        with self._lock:
            answer.result, answer.failed = cancelled if work.cancelled() else work.result()
            answer.done_at = time.monotonic()
            self._kept += len(answer.result)
            self._waiting[answer.owner] -= 1
        self._events.ready([id])

    @contextlib.asynccontextmanager
    async def _loaded(self, state: SampledState | None) -> Any:
        """The engine has the adapter of a state while the block runs."""
        if state is None:
            yield
            return
        name = state.folder
        self._using[name] += 1
        try:
            if name not in self._adapters:
                await self._make_room(state.size)
            if name not in self._adapters:  # while another was unloaded
                update = WeightUpdate(0, self._states / name, kind="adapter", adapter=name)
                self._adapters[name] = asyncio.ensure_future(self._engine.load_weights(update))
                self._sizes[name] = state.size
            self._adapters.move_to_end(name)
            try:
                await asyncio.shield(self._adapters[name])
            except Exception:
                self._adapters.pop(name, None)
                raise
            yield
        finally:
            self._using[name] -= 1

    async def _make_room(self, size: int) -> None:
        for name in list(self._adapters):
            if sum(self._sizes[each] for each in self._adapters) + size <= self._limits.adapter_bytes:
                return
            if not self._using[name]:
                del self._adapters[name], self._sizes[name], self._using[name]
                await self._engine.unload_adapter(name)


def _failure(said: str, category: str) -> bytes:
    failed: str = types.RequestFailedResponse(
        error=said, category=types.RequestErrorCategory(category)
    ).model_dump_json()
    return failed.encode()
