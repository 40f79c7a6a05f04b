"""A streamed answer: between the deltas of a model and a client that may read slowly, stall, or go away.

    model ── on_delta ──▶ pending, bounded ──▶ written, each piece within `WRITE_S` ──▶ client
      ▲                        │ too much is pending, a piece is not taken in time, the client is gone
      └──────── cancelled ◀────┘

The answer is begun when the first delta is there: until then an error still has an HTTP status of its own. After that
it is the interface's error event. What is recorded of a turn is the model's, whatever the client read of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from whet.clients.client import Delta, StreamedAnswer
from whet.errors import ModelError
from whet.gateway.wire import EventWriter, RequestError
from whet.types import Response

WRITE_S = 30.0  # for a client to take what is written to it
MOST_PENDING = 1 << 20  # characters

T = TypeVar("T")

Work = Callable[[Callable[[int, Delta], None]], Awaitable[Sequence[Response]]]
"""The answers of all choices, whose deltas it passes on by the number of the choice."""


class EventStream(StreamingResponse):
    """The answer of `work` as server-sent events. Await `begun()`, then use it as the response."""

    def __init__(self, request: Request, work: Work, writer: EventWriter, *, choices: int = 1) -> None:
        super().__init__((), media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self.outcome: Sequence[Response] | RequestError | None = None  # None: the client has not taken it all
        self.on_end: Callable[[], object] = lambda: None
        self.on_answered: Callable[[Sequence[Response]], object] = lambda responses: None
        self._request, self._writer = request, writer
        self._streamed = [StreamedAnswer() for _ in range(choices)]
        self._pending, self._size = list[tuple[int, Delta]](), 0
        self._news = asyncio.Event()
        self._work = asyncio.ensure_future(work(self._hear))
        self._gone = asyncio.ensure_future(client_gone(request.receive))
        for task in (self._work, self._gone):
            task.add_done_callback(lambda _: self._news.set())

    async def begun(self) -> None:
        """Once the answer has begun. Raises `RequestError` where it failed before, and `ClientDisconnect`."""
        try:
            await self._news.wait()
            if self._gone.done():
                raise ClientDisconnect
            if self._work.done() and not self._pending:
                self._work.result()
        except BaseException:
            await self._end()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._write(send, self._writer.begin(self._prompt_tokens()))
            while not self._work.done() or self._pending:
                self._news.clear()
                if self._pending:
                    await self._write(send, self._taken())
                elif not self._gone.done():
                    await self._news.wait()
                if self._gone.done():
                    return
            last, outcome = self._last()
            await self._write(send, last)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            self.outcome = outcome
        except TimeoutError:
            return  # the server closes the connection
        finally:
            await self._end()

    def _hear(self, choice: int, delta: Delta) -> None:
        if self._size > MOST_PENDING:
            raise RequestError("the client reads too slowly", status=408)
        self._streamed[choice].add(delta)
        self._pending.append((choice, delta))
        self._size += len(delta.reasoning) + len(delta.content)
        self._news.set()

    def _prompt_tokens(self) -> int | None:
        """From the first delta, or from an answer that is complete already."""
        known = self._pending[0][1].prompt_tokens if self._pending else None
        if known is None and self._work.done() and self._work.exception() is None:
            usage = self._work.result()[0].usage
            return usage.prompt_tokens if usage is not None else None
        return known

    def _taken(self) -> str:
        pending, self._pending, self._size = self._pending, [], 0
        return "".join(self._writer.add(delta, choice) for choice, delta in pending if delta)

    def _last(self) -> tuple[str, Sequence[Response] | RequestError]:
        """What ends the stream, once `work` is done: the rest of the answer, or what went wrong."""
        try:
            responses = self._work.result()
            rests = [
                streamed.rest(response.message) for streamed, response in zip(self._streamed, responses, strict=True)
            ]
            last = "".join(self._writer.add(rest, choice) for choice, rest in enumerate(rests))
            return last + self._writer.finish(responses), responses
        except RequestError as error:
            return self._writer.fail(error), error
        except ModelError as error:
            failed = RequestError(f"the model failed: {error}", status=502)
            return self._writer.fail(failed), failed

    async def _write(self, send: Send, text: str) -> None:
        if text:
            async with asyncio.timeout(WRITE_S):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _end(self) -> None:
        """Cancel the model's work and the watch for the client's disconnect."""
        self._gone.cancel()
        self._work.cancel()
        try:
            await asyncio.wait([self._work])
            if not self._work.cancelled():
                self._work.exception()  # retrieved, so that asyncio does not log it: the client has left
        finally:
            self.on_end()


async def client_gone(receive: Receive) -> None:
    """Once the client has gone away. The whole of its request has been received before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """What `work` gives, unless the client goes away meanwhile: then `work` is cancelled.

    Raises `ClientDisconnect` in that case. `work` is awaited in this very task, so that an answer
    which is there at once is sent at once.
    """
    task, gone = asyncio.current_task(), False
    assert task is not None

    def leave(watching: asyncio.Future[None]) -> None:
        nonlocal gone
        if not watching.cancelled():
            gone = True
            task.cancel()

    watching = asyncio.ensure_future(client_gone(receive))
    watching.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if gone and not task.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        watching.remove_done_callback(leave)
        watching.cancel()
