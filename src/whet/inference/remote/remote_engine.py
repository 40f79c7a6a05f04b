"""`RemoteEngine`: an `Engine` that runs in another process, over HTTP: on a Unix socket of this host, or by TCP.

The server is `whet.gateway.engine_server`, the protocol is in `engine_wire.py`. A request that is cancelled closes its
connection, and its row in the engine is free. Weights travel as a path, which is one of the engine's host. How long an
answer may take depends on the model; the caller sets a limit (a run's is its watchdog).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whet.errors import EndpointDownError, Error, MissingExtraError, ModelError, WhetError
from whet.inference.continuation import SampleLostError, joined
from whet.inference.protocol import OnTokens, Sample, SampleRequest, WeightUpdate
from whet.inference.remote.engine_wire import KEY_HEADER, WEIGHTS, EngineFacts, completion_of, error_in, sample_in

LOOK_S = 0.5
"""Seconds between two looks at how long the answers are that are being sampled."""


class RemoteEngine:
    """See `whet.inference.protocol.Engine`. An answer that breaks off with the engine is a `SampleLostError`."""

    recomputes = False  # it stands for an embedded engine

    def __init__(
        self,
        address: Path | tuple[str, int],
        key: str,
        *,
        version: int = 0,
        gone: Callable[[str], Exception] = EndpointDownError,
    ) -> None:
        """Connects with the first request.

        Args:
            address: the Unix socket that the engine's server listens on; or host and port.
            key: the secret that the server was started with.
            version: policy version of the weights the engine has now.
            gone: makes, of a reason in words, the error for an engine that has ended.
        """
        try:
            from whet.inference.remote.http_connection import HttpPool
        except ModuleNotFoundError as error:
            raise MissingExtraError("an engine in a process of its own", "train") from error
        self.version = version
        self._pool = HttpPool(address, {KEY_HEADER: key})
        self._gone = gone
        self._asking = 0  # requests of samples that are not answered
        self._lengths: list[int] = []
        self._watched = False
        self._follower: asyncio.Task[None] | None = None

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        self._asking += 1
        if self._watched and (self._follower is None or self._follower.done()):
            self._follower = asyncio.create_task(self._follow())
        try:
            return await self._sample(request, on_tokens)
        finally:
            self._asking -= 1

    def answer_lengths(self) -> list[int]:
        """Tokens so far of each answer that is being sampled, half a second old at most while requests are sent.

        May be called from another thread; the engine is polled for them from the first call on.
        """
        self._watched = True
        return self._lengths if self._asking else []

    async def _follow(self) -> None:
        with contextlib.suppress(WhetError, Error):  # the requests themselves report what is wrong
            while self._asking:
                self._lengths = (await self.facts()).answer_lengths
                await asyncio.sleep(LOOK_S)

    async def _sample(self, request: SampleRequest, on_tokens: OnTokens | None) -> Sample:
        body = json.dumps(completion_of(request, stream=on_tokens is not None)).encode()
        if on_tokens is None:
            return sample_in(await self._ask("/v1/completions", body))
        stream = _TokenStream(on_tokens)
        try:
            await self._ask("/v1/completions", body, stream.feed)
        except EndpointDownError as error:
            if stream.parts:
                raise SampleLostError(str(error), joined(*stream.parts)) from None
            raise
        return stream.sample()

    async def load_weights(self, update: WeightUpdate) -> None:
        await self._ask("/weights", WEIGHTS.dump_json(update))
        if update.adapter is None:
            self.version = update.version

    async def unload_adapter(self, name: str) -> None:
        await self._ask("/adapters/unload", json.dumps({"adapter": name}).encode())

    async def release(self, rollout_key: str) -> None:
        await self._ask("/release", json.dumps({"rollout_key": rollout_key}).encode())

    async def facts(self) -> EngineFacts:
        """What the engine is and has done so far."""
        return EngineFacts.model_validate(await self._ask("/facts"))

    async def close(self) -> None:
        """Cancel all requests. The engine itself belongs to the process that started it."""
        if self._follower is not None:
            self._follower.cancel()
        self._pool.close()

    async def _ask(self, path: str, body: bytes = b"", on_body: Callable[[bytes], None] | None = None) -> Any:
        try:
            answer = await self._pool.request("POST", path, body, on_body)
        except ConnectionError as error:
            raise self._gone(str(error)) from None
        if answer.status == 200 and on_body is not None:
            return None
        try:
            content = json.loads(answer.body)
        except ValueError:
            raise ModelError(f"the engine answered with status {answer.status} and no JSON") from None
        if answer.status != 200:
            raise error_in(content)
        return content


class _TokenStream:
    """Server-sent events of one completion: parts of the sample as they are drawn, and in the end all of it."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self.parts: list[Sample] = []
        self._on_tokens = on_tokens
        self._rest = b""
        self._last: Any = None

    def feed(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            piece = json.loads(event.removeprefix(b"data: "))
            if "part" in piece:
                self.parts.append(sample_in(piece["part"]))
                self._on_tokens(self.parts[-1].ids)
            else:
                self._last = piece

    def sample(self) -> Sample:
        if self._last is None:
            raise ModelError("the engine's answer ended before its sample was there")
        if "error" in self._last:
            raise error_in(self._last)
        return sample_in(self._last)
