"""`VllmEngine`: an `Engine` on a vLLM server, which runs on this host or elsewhere.

New weights are taken between two tokens. The server gives up what it samples (`/pause?mode=abort`), and every
request that was interrupted is sent again, with what it has sampled so far, once the server has the new weights. So
each token was sampled with keys and values of one version alone, and version runs are exact. A request that is on its
way to the server at that moment is withdrawn: what is answered after the pause must not count as sampled before it.

An adapter gets a new name in the server for every version, because vLLM reuses prefixes by the name of the adapter.

Asleep, the server has given the memory of its GPU back (vLLM's sleep mode): at level 2 weights and cache are gone, and
it wakes with new weights. Under an adapter the base stays as it is, so there it is level 1, which keeps a copy of all
weights, those of adapters too, in host memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import (
    EndpointDownError,
    EngineError,
    ModelError,
    OverlongPromptError,
    RequestRefusedError,
    TrainingError,
)
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WeightUpdate
from whet.inference.requests import SampleLostError, check_adapter, check_params, joined, remaining
from whet.inference.vllm.completions import (
    PROBE,
    CompletionPiece,
    DrawnStream,
    LogprobsMode,
    Needs,
    body_of,
    check_logprobs,
    check_scores,
    described,
    drawn_in,
    mistakes,
    part_of,
)
from whet.inference.vllm.http_connection import EngineHttpResponse, HttpPool
from whet.inference.vllm.server import SERVED_NAME

_log = logging.getLogger(__name__)


QUIET_S = 0.1
"""Seconds without an answer after which a pause has no more to give; what is later is sampled again."""
LEVEL_WITH_COPY, LEVEL_WITHOUT_WEIGHTS = 1, 2
"""Of vLLM's sleep: with a copy of the weights in host memory, or without."""


@dataclass(slots=True)
class _Adapter:
    """An adapter as the server has it: under a name of this version alone."""

    served: str
    version: int


class VllmEngine(Engine):
    """See `whet.inference.protocol.Engine`."""

    recomputes = True  # an interrupted request is sent again, from its ids

    def __init__(
        self,
        pool: HttpPool,
        *,
        max_context: int,
        model: str = SERVED_NAME,
        logprobs_mode: LogprobsMode = "processed_logprobs",
        version: int = 0,
        gone: Callable[[str], Exception] = EndpointDownError,
    ) -> None:
        """Speaks to the server behind `pool`.

        Args:
            pool: connections to the server; their headers have its key.
            max_context: tokens of prompt and answer together.
            model: the name that the server has for its model.
            logprobs_mode: what the server was started with.
            version: policy version of the weights it has now.
            gone: makes, of a reason in words, the error for a server that has ended.
        """
        self.version, self.max_context = version, max_context
        self._pool, self._model, self._mode, self._gone = pool, model, logprobs_mode, gone
        self._policy: _Adapter | None = None  # an adapter that is the policy itself
        self._adapters: dict[str, _Adapter] = {}
        self._using: Counter[str] = Counter()  # requests in progress, by served name
        self._leaving: set[str] = set()  # served names to unload with their last request
        self._open = asyncio.Event()  # not while weights are being loaded
        self._open.set()
        self._loading = asyncio.Lock()
        self._in_flight: set[asyncio.Task[CompletionPiece]] = set()
        self._loads = 0
        self._own = secrets.token_hex(4)
        self._failure: TrainingError | None = None  # of the weights: nothing is sampled with them
        self._asleep = False

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        """Raises `RequestRefusedError` for a request that the server's logprobs do not fit (`check_logprobs`).

        An answer that breaks off with the server is a `SampleLostError`, with what is known of it.
        """
        self._check(request, listens=on_tokens is not None)
        parts: Sample | None = None
        rest = request
        while True:
            await self._open.wait()
            if self._failure is not None:
                raise self._failure
            adapter = self._policy if request.adapter is None else self._adapter(request.adapter)
            version, served = (self.version, self._model) if adapter is None else (adapter.version, adapter.served)
            stream = None if on_tokens is None else DrawnStream(on_tokens)
            try:
                drawn = await self._draw(rest, served, stream)
            except EndpointDownError as error:
                known = [] if parts is None else [parts]
                if stream is not None:
                    known.append(part_of(stream.drawn, version))
                if any(part.ids for part in known):
                    raise SampleLostError(str(error), joined(*known)) from None
                raise
            if drawn.finish_reason is None and request.scoring is not None:
                continue  # from its beginning: scores are those of one version
            part = part_of(drawn, version)
            parts = part if parts is None else joined(parts, part)
            if drawn.finish_reason is not None:
                return parts
            if len(parts.ids) >= request.params.max_tokens:  # given up just as it was complete
                return parts
            rest = remaining(request, parts.ids)

    async def load_weights(self, update: WeightUpdate) -> None:
        """Raises `TrainingError` where the server holds other tensors afterwards than the update has."""
        async with self._loading:
            if update.adapter is not None:
                await self._load_named(update.adapter, update)
            elif update.kind == "adapter":
                await self._load_policy_adapter(update)
            elif update.kind == "model":
                await self._load_model(update)
            else:
                raise ModelError("weights in the embedded engine's layout cannot be loaded by vLLM")

    async def sleep(self) -> int:
        """See `Engine`. A server on a GPU needs vLLM's flag `enable-sleep-mode`; one on a CPU frees nothing."""
        async with self._loading:
            if self._in_flight or self._adapters:
                raise ModelError("an engine that answers requests, or serves adapters with a name, cannot sleep")
            self._asleep = True
            before = await self._free_bytes()
            await self._ask(
                "POST", f"/sleep?level={LEVEL_WITHOUT_WEIGHTS if self._policy is None else LEVEL_WITH_COPY}"
            )
            return await self._free_bytes() - before

    async def wake(self, update: WeightUpdate) -> None:
        """See `Engine`. Weights are loaded before there is a cache, so that less is held at once."""
        async with self._loading:
            if update.kind == "adapter" and update.adapter is None:
                if self._policy is None:
                    raise ModelError("an engine that sleeps without its weights cannot wake with an adapter alone")
                await self._ask("POST", "/wake_up")
                await self._take_policy_adapter(update)
            elif update.kind == "model":
                await self._ask("POST", "/wake_up?tags=weights")
                await self._take_model(update)
                await self._ask("POST", "/wake_up?tags=kv_cache")
            else:
                raise ModelError(f"vLLM cannot wake with weights of kind {update.kind!r}")
            self._asleep = False

    async def _free_bytes(self) -> int:
        """Of the server's GPUs together; 0 on a CPU."""
        answer = await self._ask("POST", "/collective_rpc", _call("whet_free_bytes"))
        return sum(rank["free"] for rank in answer["results"])

    async def unload_adapter(self, name: str) -> None:
        check_adapter(name, self._adapters)
        await self._leave(self._adapters.pop(name).served)

    async def release(self, rollout_key: str) -> None:
        """Nothing to do: the server's prefix cache forgets by itself."""

    async def close(self) -> None:
        for task in self._in_flight:
            task.cancel()
        self._pool.close()

    async def served_names(self) -> list[str]:
        """The names that the server has for its model and for the adapters that are loaded."""
        return [entry["id"] for entry in (await self._ask("GET", "/v1/models"))["data"]]

    async def check(self) -> None:
        """Raise unless the server answers and has the model."""
        names = await self.served_names()
        if self._model not in names:
            raise ModelError(f"the vLLM server has no model {self._model!r}; it has: {', '.join(names)}")

    async def check_fits(self, needs: Needs) -> int:
        """How many tokens its sequences may have. Raises `EngineError` where the server is not what a run needs."""
        server = await described(self._ask, _call("whet_describe"))
        ids: list[int] | None = None
        with contextlib.suppress(ModelError):  # a server without a tokenizer works with ids alone
            text = {"model": self._model, "prompt": PROBE, "add_special_tokens": False}
            ids = (await self._ask("POST", "/tokenize", json.dumps(text).encode()))["tokens"]
        if wrong := mistakes(server, ids, needs):
            raise EngineError(f"{'; '.join(wrong)}. Start it again with what is named.")
        return int(server["max_model_len"])

    def _check(self, request: SampleRequest, *, listens: bool) -> None:
        prompt, params = request.prompt_ids, request.params
        if self._asleep:
            raise ModelError("the engine sleeps")
        if request.adapter is not None:
            check_adapter(request.adapter, self._adapters)
        if not prompt or params.max_tokens < 1:
            raise RequestRefusedError("a request needs at least one prompt token and max_tokens of at least 1")
        check_params(params)
        check_logprobs(request, self._mode)
        check_scores(request, listens=listens)
        if len(prompt) + params.max_tokens > self.max_context:
            raise OverlongPromptError(
                f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) exceed the context of {self.max_context}"
            )

    def _adapter(self, name: str) -> _Adapter:
        check_adapter(name, self._adapters)
        return self._adapters[name]

    async def _draw(self, request: SampleRequest, served: str, stream: DrawnStream | None) -> CompletionPiece:
        """One answer of the server, whole or given up; what was drawn before a withdrawal."""
        task = asyncio.create_task(self._complete(request, served, stream))
        self._in_flight.add(task)
        self._using[served] += 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():  # the caller gave up
                task.cancel()
                raise
            return CompletionPiece([], [], None) if stream is None else stream.drawn
        finally:
            self._in_flight.discard(task)
            self._using[served] -= 1
            await self._unload_unused(served)

    async def _complete(self, request: SampleRequest, served: str, stream: DrawnStream | None) -> CompletionPiece:
        body = body_of(request, served, stream=stream is not None)
        if stream is None:
            return drawn_in((await self._ask("POST", "/v1/completions", body))["choices"][0], request)
        await self._ask("POST", "/v1/completions", body, stream.feed)
        if not stream.complete:
            raise self._gone("an answer broke off")
        return stream.drawn

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """Nothing is sampled in this block; what was being sampled is continued after it."""
        self._open.clear()
        try:
            await self._ask("POST", "/pause?mode=abort")
            waiting = {task for task in self._in_flight if not task.done()}
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
            for task in waiting:  # on its way when the pause came: the server would begin with it afterwards
                task.cancel()
            yield
        finally:
            try:
                await self._ask("POST", "/reset_prefix_cache", json_answer=False)
                await self._ask("POST", "/resume")
            finally:
                self._open.set()

    async def _load_model(self, update: WeightUpdate) -> None:
        async with self._paused():
            await self._take_model(update)

    async def _take_model(self, update: WeightUpdate) -> None:
        """Load all weights into a server that samples nothing."""
        answer = await self._ask("POST", "/collective_rpc", _call("whet_load_weights", str(update.path)))
        differ = sorted({name for rank in answer["results"] for name in rank["differ"]})
        if differ:
            self._failure = TrainingError(
                f"vLLM holds other weights than those of version {update.version}: {len(differ)} tensors differ, "
                f"the first is {differ[0]}. Continue with --resume; if it happens again, report it with the "
                "model's name."
            )
            raise self._failure
        if not self._loads and (unchecked := sorted({n for rank in answer["results"] for n in rank["unchecked"]})):
            _log.warning(
                "%d tensors of the model cannot be compared with what vLLM holds, such as %s",
                len(unchecked),
                unchecked[0],
            )
        self._loads += 1
        self.version = update.version

    async def _load_policy_adapter(self, update: WeightUpdate) -> None:
        async with self._paused():
            await self._take_policy_adapter(update)

    async def _take_policy_adapter(self, update: WeightUpdate) -> None:
        """Load an adapter that is the policy into a server that samples nothing."""
        loaded = self._named(self._model, update)
        before = self._policy
        await self._load_adapter(loaded, update.path)
        self._policy, self.version = loaded, update.version
        if before is not None:
            await self._unload(before.served)

    async def _load_named(self, name: str, update: WeightUpdate) -> None:
        loaded = self._named(name, update)
        await self._load_adapter(loaded, update.path)
        before = self._adapters.get(name)
        self._adapters[name] = loaded
        if before is not None:
            await self._leave(before.served)

    def _named(self, name: str, update: WeightUpdate) -> _Adapter:
        """Under a name that no other run has given to this server, which may keep adapters of runs that were killed."""
        self._loads += 1
        return _Adapter(f"{name}@{update.version}-{self._loads}-{self._own}", update.version)

    async def _load_adapter(self, adapter: _Adapter, path: Path) -> None:
        body = {"lora_name": adapter.served, "lora_path": str(path)}
        await self._ask("POST", "/v1/load_lora_adapter", json.dumps(body).encode(), json_answer=False)

    async def _leave(self, served: str) -> None:
        """Unload an adapter once no request uses it."""
        self._leaving.add(served)
        await self._unload_unused(served)

    async def _unload_unused(self, served: str) -> None:
        if not self._using[served]:
            del self._using[served]
            if served in self._leaving:
                self._leaving.discard(served)
                await self._unload(served)

    async def _unload(self, served: str) -> None:
        with contextlib.suppress(RequestRefusedError):  # a server that was started again does not have it
            body = json.dumps({"lora_name": served}).encode()
            await self._ask("POST", "/v1/unload_lora_adapter", body, json_answer=False)

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        on_body: Callable[[bytes], None] | None = None,
        *,
        json_answer: bool = True,
    ) -> Any:
        """The server's answer, read. Raises `RequestRefusedError`, `ModelError`, or what `gone` makes."""
        try:
            answer = await self._pool.request(method, path, body, on_body)
        except ConnectionError as error:
            raise self._gone(str(error)) from None
        if answer.status != 200:
            raise self._error(answer)
        if on_body is not None or not json_answer:
            return None
        try:
            return json.loads(answer.body)
        except ValueError:
            raise ModelError(f"the vLLM server answered {path} without JSON") from None

    def _error(self, answer: EngineHttpResponse) -> Exception:
        text = answer.body.decode(errors="replace").strip()
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            content = json.loads(text)
            reason = content.get("error", content.get("detail", text))
            text = str(reason.get("message", reason) if isinstance(reason, dict) else reason)
        if answer.status < 500:
            return RequestRefusedError(f"the vLLM server refused: {text[:500]}")
        return self._gone(f"status {answer.status}: {text[:300]}")


def _call(method: str, *arguments: str) -> bytes:
    return json.dumps({"method": method, "args": list(arguments)}).encode()
