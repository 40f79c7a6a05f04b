"""`RemoteEngine`: an `Engine` in another process, by a Unix socket or TCP; `EngineServer` is the other side.

All requests share one connection. Its frames are pickled tuples, in which `number` is that of a request:

    to the engine      number, method, arguments     or with None as the method: the request is given up
    from the engine    number, "part", sample        what was drawn since the last one, where the caller listens
                       number, "answer", value       or "error" with what `error_to_words` makes of it

What is unpickled comes from a process that has proven first that it has the key. Weights travel as a path, which is one
of the engine's host. How long an answer may take depends on the model; the caller sets a limit (a run's is its
watchdog).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
import pickle
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import EndpointDownError, Error, WhetError
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WeightUpdate
from whet.inference.requests import SampleLostError, joined
from whet.system.channel import READ_AHEAD, Channel, error_from_words, error_to_words

if TYPE_CHECKING:
    from whet.inference.embedded import EmbeddedEngine

LOOK_S = 0.5
"""Seconds between two looks at how long the answers are that are being sampled."""
PROOF_BYTES = 32
PROVES_WITHIN_S = 10.0
OnPart = Callable[[Sample], None]
logger = logging.getLogger(__name__)


class RemoteEngine(Engine):
    """An answer that breaks off with the engine is a `SampleLostError`."""

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
        self.version = version
        self._address, self._key, self._gone = address, key, gone
        self._connecting: asyncio.Task[_Connection] | None = None
        self._sampling = 0  # requests of samples that are not answered
        self._lengths: list[int] = []
        self._watched = False
        self._follower: asyncio.Task[None] | None = None

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        self._sampling += 1
        if self._watched and (self._follower is None or self._follower.done()):
            self._follower = asyncio.create_task(self._follow())
        try:
            return await self._sample(request, on_tokens)
        finally:
            self._sampling -= 1

    def answer_lengths(self) -> list[int]:
        """Tokens so far of each answer that is being sampled, half a second old at most while requests are sent.

        May be called from another thread; the engine is polled for them from the first call on.
        """
        self._watched = True
        return self._lengths if self._sampling else []

    async def _follow(self) -> None:
        with contextlib.suppress(WhetError, Error):  # the requests themselves report what is wrong
            while self._sampling:
                self._lengths = await self._call("answer_lengths")
                await asyncio.sleep(LOOK_S)

    async def _sample(self, request: SampleRequest, on_tokens: OnTokens | None) -> Sample:
        parts: list[Sample] = []

        def hear(part: Sample) -> None:
            assert on_tokens is not None
            parts.append(part)
            on_tokens(part.ids)

        listens = on_tokens is not None
        try:
            sample: Sample = await self._call("sample", request, listens, on_part=hear if listens else None)
        except EndpointDownError as error:
            if parts:
                raise SampleLostError(str(error), joined(*parts)) from None
            raise
        return sample

    async def load_weights(self, update: WeightUpdate) -> None:
        await self._call("load_weights", update)
        if update.adapter is None:
            self.version = update.version

    async def unload_adapter(self, name: str) -> None:
        await self._call("unload_adapter", name)

    async def release(self, rollout_key: str) -> None:
        await self._call("release", rollout_key)

    async def close(self) -> None:
        """Cancel all requests. The engine itself belongs to the process that started it."""
        if self._follower is not None:
            self._follower.cancel()
        if (connection := self._connection()) is not None:
            connection.close()
        self._connecting = None

    async def _call(self, method: str, *arguments: Any, on_part: OnPart | None = None) -> Any:
        loop = asyncio.get_running_loop()
        if self._connecting is None or self._connecting.get_loop() is not loop or not self._usable():
            self._connecting = loop.create_task(_connect(self._address, self._key))
        try:
            connection = await asyncio.shield(self._connecting)
            return await connection.call(method, arguments, on_part)
        except OSError as error:
            raise self._gone(str(error)) from None

    def _usable(self) -> bool:
        """Whether there is a connection, or may soon be one."""
        assert self._connecting is not None
        if not self._connecting.done():
            return True
        connection = self._connection()
        return connection is not None and not connection.lost

    def _connection(self) -> _Connection | None:
        task = self._connecting
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()


async def _connect(address: Path | tuple[str, int], key: str) -> _Connection:
    """Raises `OSError` where there is no engine with this key."""
    if isinstance(address, Path):
        reader, writer = await asyncio.open_unix_connection(str(address), limit=READ_AHEAD)
    else:
        reader, writer = await asyncio.open_connection(*address, limit=READ_AHEAD)
    try:
        writer.write(_proof(key, "run"))
        async with asyncio.timeout(PROVES_WITHIN_S):
            answer = await reader.readexactly(PROOF_BYTES)
        if not hmac.compare_digest(answer, _proof(key, "engine")):
            raise ConnectionError("what answers there is another engine")
    except (OSError, asyncio.IncompleteReadError) as error:
        writer.transport.abort()
        text = "the connection was closed: the engine has another key" if isinstance(error, EOFError) else str(error)
        raise ConnectionError(text) from None
    return _Connection(Channel(reader, writer))


def _proof(key: str, side: str) -> bytes:
    """What a side sends first to prove that it has the key."""
    return hmac.digest(key.encode(), side.encode(), "sha256")


class _Connection:
    """The run's side of a connection."""

    def __init__(self, channel: Channel) -> None:
        self.lost = False
        self._channel, self._numbers = channel, itertools.count()
        self._waiting: dict[int, tuple[asyncio.Future[Any], OnPart | None]] = {}
        self._reading = asyncio.create_task(self._read(), name="whet engine connection")

    async def call(self, method: str, arguments: tuple[Any, ...], on_part: OnPart | None) -> Any:
        """What the method returns. Raises what it raises, and `ConnectionError` where the connection is lost."""
        if self.lost:
            raise ConnectionError("the connection was closed")
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, on_part
        self._channel.send_object((number, method, arguments))
        try:
            return await answer
        except asyncio.CancelledError:
            self._channel.send_object((number, None, ()))
            raise
        finally:
            del self._waiting[number]

    def close(self) -> None:
        self.lost = True
        self._channel.abort()
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the connection was closed"))

    async def _read(self) -> None:
        try:
            while (frame := await self._channel.receive()) is not None:
                self._take(*pickle.loads(frame))
        finally:
            self.close()

    def _take(self, number: int, kind: str, value: Any) -> None:
        answer, on_part = self._waiting.get(number, (None, None))
        if answer is None or answer.done():
            return  # the request was given up
        if kind == "answer":
            answer.set_result(value)
        elif kind == "error":
            answer.set_exception(error_from_words(*value))
        else:
            assert on_part is not None
            try:
                on_part(value)
            except Exception as error:
                answer.set_exception(error)
                self._channel.send_object((number, None, ()))


class EngineServer:
    """The engine's side: answers connections that have the key."""

    def __init__(self, engine: EmbeddedEngine, key: str) -> None:
        self._engine, self._key = engine, key

    async def serve(self, listening: socket.socket) -> None:
        """Until it is cancelled."""
        start: Any = asyncio.start_unix_server if listening.family == socket.AF_UNIX else asyncio.start_server
        async with await start(self._connected, sock=listening, limit=READ_AHEAD) as server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel, running = Channel(reader, writer), dict[int, asyncio.Task[None]]()
        try:
            async with asyncio.timeout(PROVES_WITHIN_S):
                proof = await reader.readexactly(PROOF_BYTES)
            if not hmac.compare_digest(proof, _proof(self._key, "run")):
                return
            writer.write(_proof(self._key, "engine"))
            while (frame := await channel.receive()) is not None:
                number, method, arguments = pickle.loads(frame)
                if method is not None:
                    task = asyncio.create_task(self._answer(channel, number, method, arguments))
                    running[number] = task
                    task.add_done_callback(lambda _, number=number: running.pop(number))  # type: ignore[misc]
                elif (given_up := running.get(number)) is not None:
                    given_up.cancel()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            for task in running.values():
                task.cancel()
            channel.abort()

    async def _answer(self, channel: Channel, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        engine = self._engine
        try:
            value: Any = None
            if method == "sample":
                request, listens = arguments
                value = await engine.sample(
                    request, on_drawn=(lambda part: channel.send_object((number, "part", part))) if listens else None
                )
            elif method == "answer_lengths":
                value = engine.answer_lengths()
            else:
                work: Awaitable[None] = getattr(engine, method)(*arguments)
                await work
            message = (number, "answer", value)
        except Exception as error:
            if not isinstance(error, Error | WhetError):
                logger.exception("a request failed")
            message = (number, "error", error_to_words(error))
        channel.send_object(message)
