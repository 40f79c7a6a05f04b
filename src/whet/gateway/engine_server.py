"""An engine behind HTTP, for the process that owns it: `RemoteEngine` is the other side, `engine_wire.py` the protocol.

    POST /v1/completions         a prompt as token ids, answered with token ids; as events with "stream"
    POST /weights                take new weights from a path of this host
    POST /release  /adapters/unload  /facts

It listens on a Unix socket in a directory of its owner's, and answers only requests with the key that it was started
with. This is the bare ASGI interface: with hundreds of small requests a second, routing and request objects of a
framework would cost as much as sampling does.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from whet.errors import Error, ModelError, WhetError
from whet.gateway.streams import unless_gone
from whet.inference.continuation import joined
from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import Sample
from whet.inference.remote.engine_wire import (
    BODIES,
    KEY_HEADER,
    EngineCompletionBody,
    EngineFacts,
    answer_of,
    failure_of,
)

MAX_BODY_BYTES = 64 << 20
logger = logging.getLogger(__name__)


class EngineServer:
    """The ASGI application."""

    def __init__(self, engine: EmbeddedEngine, key: str) -> None:
        self._engine, self._key = engine, key.encode()
        self._answers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "/v1/completions": self._completion,
            "/weights": engine.load_weights,
            "/release": lambda body: engine.release(body.rollout_key),
            "/adapters/unload": lambda body: engine.unload_adapter(body.adapter),
            "/facts": self._facts,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        path = scope["path"]
        try:
            if not hmac.compare_digest(dict(scope["headers"]).get(KEY_HEADER.encode(), b""), self._key):
                return await _send(send, 401, failure_of(ModelError("the key is missing or wrong")))
            answer = self._answers.get(path)
            if answer is None or scope["method"] != "POST":
                return await _send(send, 404, failure_of(ModelError(f"there is no {scope['method']} {path} here")))
            content = await _body(receive)
            body = BODIES[path].validate_json(content) if path in BODIES else None
            if isinstance(body, EngineCompletionBody) and body.stream:
                return await self._stream(body, receive, send)
            await _send(send, 200, await unless_gone(receive, answer(body)))
        except ClientDisconnect:
            return
        except ValidationError as error:
            await _send(send, 400, failure_of(ModelError(f"the body of {path} is wrong: {error.errors()[0]['msg']}")))
        except (Error, WhetError) as error:
            await _send(send, 400, failure_of(error))
        except Exception as error:
            logger.exception("a request failed")
            await _send(send, 500, failure_of(error))

    async def _completion(self, body: EngineCompletionBody) -> dict[str, Any]:
        return answer_of(await self._engine.sample(body.request()))

    async def _facts(self, _: None) -> dict[str, Any]:
        engine, stats = self._engine, self._engine.stats
        return EngineFacts(
            version=engine.version,
            max_context=engine.max_context,
            generated_tokens=stats.generated_tokens,
            decode_steps=stats.decode_steps,
            busy_seconds=stats.busy_seconds,
            answer_lengths=engine.answer_lengths(),
        ).model_dump()

    async def _stream(self, body: EngineCompletionBody, receive: Receive, send: Send) -> None:
        """What is drawn when it is drawn, then the sample or what went wrong, to a reader that is this host's."""
        drawn: list[Sample] = []
        news = asyncio.Event()

        def collect(part: Sample) -> None:
            drawn.append(part)
            news.set()

        async def answer() -> dict[str, Any]:
            try:
                return answer_of(await self._engine.sample(body.request(), on_drawn=collect))
            except (Error, WhetError) as error:
                return failure_of(error)

        async def stream(work: asyncio.Task[dict[str, Any]]) -> None:
            while not work.done() or drawn:
                news.clear()
                if drawn:
                    part = joined(*drawn)
                    drawn.clear()
                    await send(_piece(_event({"part": answer_of(part)})))
                else:
                    await news.wait()
            await send(_piece(_event(work.result())))
            await send({"type": "http.response.body", "body": b""})

        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        work = asyncio.create_task(answer())
        work.add_done_callback(lambda _: news.set())
        try:
            await unless_gone(receive, stream(work))
        finally:
            work.cancel()


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _piece(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _body(receive: Receive) -> bytes:
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY_BYTES:
            raise ModelError(f"the body is longer than {MAX_BODY_BYTES} bytes")
        if not message.get("more_body"):
            return b"".join(pieces)


async def _send(send: Send, status: int, content: Any) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
