"""An endpoint that speaks OpenAI's chat completions, on loopback: real HTTP around a function of the request.

    with Endpoint(answer, latency_s=0.2) as endpoint:
        endpoint.url, endpoint.requests, endpoint.most_in_flight

Hand-written over asyncio, so that it costs little beside what is measured against it. It can be slow, turn requests
away in bursts (429), fail (500) and refuse keys (401).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

Answer = Callable[[dict[str, Any], int], dict[str, Any] | None]
"""From a request's body, and how often the same was asked before with other seeds, to a message; None where a filter
refuses."""


@dataclass(slots=True)
class Trouble:
    """What goes wrong, by the number of the request: the same in each run that asks in the same order."""

    busy_every: int = 0  # after each so many requests ...
    busy_for: int = 0  # ... so many are turned away with 429
    fail_every: int = 0  # each so manieth request fails with 500
    refuse_after: int | None = None  # requests after which the key is no longer good

    def status(self, number: int) -> int:
        """Of the answer to request `number`, from 0."""
        if self.refuse_after is not None and number >= self.refuse_after:
            return 401
        if self.busy_for and number % (self.busy_every + self.busy_for) >= self.busy_every:
            return 429
        return 500 if self.fail_every and (number + 1) % self.fail_every == 0 else 200


@dataclass(slots=True)
class Endpoint:
    """A server in a thread of its own, from `start` to `close`."""

    answer: Answer
    latency_s: float = 0.0
    trouble: Trouble = field(default_factory=Trouble)
    requests: list[dict[str, Any]] = field(default_factory=list)  # the bodies that were answered with 200
    asked: int = 0  # requests of all kinds
    in_flight: int = 0
    most_in_flight: int = 0
    port: int = 0
    _seeds: dict[str, dict[Any, int]] = field(default_factory=dict)  # of each request, in the order they came
    _loop: asyncio.AbstractEventLoop | None = None
    _stop: asyncio.Event | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(ready.set)), daemon=True)
        self._thread.start()
        assert ready.wait(90), "the endpoint did not start"
        return self

    def close(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(90)

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Serve until it is closed."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        on_ready()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = json.loads(await reader.readexactly(_length(head)))
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    status, reply = self._reply(body)
                    await asyncio.sleep(self.latency_s)
                finally:
                    self.in_flight -= 1
                writer.write(_response(status, reply))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client or the server has ended
        finally:
            writer.close()

    def _reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status = self.trouble.status(self.asked)
        self.asked += 1
        if status != 200:
            return status, {"error": {"message": f"scripted trouble {status}", "code": str(status)}}
        self.requests.append(body)
        seeds = self._seeds.setdefault(json.dumps([body["messages"], body.get("tools")]), {})
        number = seeds.setdefault(body.get("seed", f"asking {len(seeds)}"), len(seeds))
        return 200, _completion(body, self.answer(body, number))


def _completion(body: dict[str, Any], message: dict[str, Any] | None) -> dict[str, Any]:
    reason = "content_filter" if message is None else "tool_calls" if message.get("tool_calls") else "stop"
    asked = len(json.dumps(body["messages"])) // 4
    said = len(str((message or {}).get("content") or "")) // 4 + 1
    return {
        "id": "chatcmpl-planted",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {"index": 0, "finish_reason": reason, "message": message or {"role": "assistant", "content": None}}
        ],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }


def _length(head: bytes) -> int:
    """The length of a request's body."""
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in fields if name == b"content-length"), 0)


def _response(status: int, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    again = "retry-after-ms: 1\r\n" if status in (429, 500) else ""
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{again}\r\n"
    return head.encode() + data
