"""The gateway as an ASGI application: routes, keys, sessions, and every failure as an error its interface knows.

    /v1/chat/completions  /v1/completions  /v1/responses  /v1/messages      the served models
    /sessions/ID/v1/...                                                     the same, recorded in a session
    /inference/v1/generate                                                  token ids in and out, as vLLM has it
    /v1/models  /health  /metrics
    /v1/load_lora_adapter  /v1/unload_lora_adapter                          adapters, as vLLM has it

A request whose client has gone is cancelled. A streamed answer begins with the first token; see `streams.py`. What
pages of other sites send is refused by `guard.py`; `bodies.py` reads and bounds the bodies of requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from whet.clients.client import AnyClient, Delta, OnDelta
from whet.errors import (
    ConfigError,
    EndpointDownError,
    EndpointError,
    Error,
    OverlongPromptError,
    RequestRefusedError,
    WhetError,
)
from whet.gateway.adapters import Adapters
from whet.gateway.bodies import Bodies
from whet.gateway.guard import Access, GatewayGuard, Hosts, OneKey, Visitor
from whet.gateway.interfaces import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
    token_generation,
)
from whet.gateway.sessions import Sessions
from whet.gateway.streams import EventStream, unless_gone
from whet.gateway.wire import AnswerId, Interface, RequestError, TurnRequest
from whet.inference.policy_client import PolicyClient
from whet.rollouts.pace import LoopPace
from whet.types import Response

GENERATE = "/inference/v1/generate"
INTERFACES: dict[str, Interface] = {
    "/v1/chat/completions": openai_chat,
    "/v1/completions": openai_completions,
    "/v1/responses": openai_responses,
    "/v1/messages": anthropic_messages,
}
Answer = Callable[[TurnRequest, OnDelta | None], Awaitable[Response]]
logger = logging.getLogger(__name__)


class Gateway:
    """Answers for `models`, by name, and for the sessions that are added to `sessions`."""

    def __init__(
        self,
        models: Mapping[str, AnyClient] | None = None,
        *,
        api_key: str | None = None,
        access: Access | None = None,
        sessions_only: bool = False,
        hosts: Hosts | None = None,
    ) -> None:
        """Make a gateway. With an `api_key`, requests outside sessions have to carry it; with `sessions_only`, there is
        nothing outside sessions. `hosts` are the names that requests may be for; None means loopback.

        `access` decides which models a request may use, in place of `models` and `api_key`. The routes that are for the
        one who runs the server (figures of all requests, loading of adapters) are left out then.
        """
        self.models = dict(models or {})
        self.sessions = Sessions()
        self.metrics = GatewayMetrics()
        self.adapters: Adapters | None = None
        self._bodies = Bodies()
        self._pace: LoopPace | None = None
        self._access: Access = access or OneKey(self.models, api_key)
        served = [Route("/health", self._health), Route("/v1/models", self._list_models)]
        own = [
            Route("/metrics", self._metrics),
            Route("/v1/load_lora_adapter", self._adapter_endpoint(Adapters.load_by_request), methods=["POST"]),
            Route("/v1/unload_lora_adapter", self._adapter_endpoint(Adapters.unload_by_request), methods=["POST"]),
        ]
        routes = [] if sessions_only else served if access is not None else served + own
        if not sessions_only:
            routes.append(Route(GENERATE, self._endpoint(GENERATE, token_generation), methods=["POST"]))
        for path, interface in INTERFACES.items():
            if not sessions_only:
                routes.append(Route(path, self._endpoint(path, interface), methods=["POST"]))
            routes.append(Route(f"/sessions/{{session}}{path}", self._endpoint(path, interface), methods=["POST"]))
        answering = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
        guarded = GatewayGuard(answering, hosts or Hosts(), lambda scope, error: _refusal(scope["path"], error))
        self.app: ASGIApp = answering if sessions_only else guarded

    def _endpoint(self, path: str, interface: Interface) -> Callable[[Request], Awaitable[HttpResponse]]:
        async def endpoint(request: Request) -> HttpResponse:
            with ExitStack() as closing:
                outcome = closing.enter_context(self.metrics.request(path))
                await self._turn_of_the_loop()
                try:
                    response = await self._turn(request, interface)
                except RequestError as error:
                    response = _json(interface.write_error(error), error.status)
                except ClientDisconnect:
                    response = HttpResponse(status_code=499)  # the client is gone
                outcome.status = response.status_code
                if isinstance(response, EventStream):
                    response.on_end = self._ending(response, outcome, closing.pop_all())
                return response

        return endpoint

    def _ending(self, stream: EventStream, outcome: RequestOutcome, closing: ExitStack) -> Callable[[], None]:
        """What is noted when a stream is over."""

        def end() -> None:
            if stream.outcome is None or isinstance(stream.outcome, RequestError):
                outcome.status = 499 if stream.outcome is None else stream.outcome.status
            else:
                stream.on_answered(stream.outcome)
            closing.close()

        return end

    async def _turn_of_the_loop(self) -> None:
        """First come, first served: hundreds of requests at once would otherwise be answered in waves."""
        if self._pace is None or not self._pace.belongs_here():
            self._pace = LoopPace()
        if self._pace.spent():
            await self._pace.turn()

    async def _turn(self, request: Request, interface: Interface) -> HttpResponse:
        answer, visitor = await self._answer_for(request)
        body, session_id = await self._bodies.read_json(request), request.path_params.get("session")
        turn = interface.read_request(body) if session_id is None else self.sessions.read(session_id, interface, body)
        count = partial(self._count, visitor, turn.model)
        name = uuid.uuid4().hex
        in_turn = "session" in request.path_params  # each choice is a turn of the session's rollout
        if in_turn:
            turn = replace(turn, headers=request.headers)
        if turn.stream:
            writer = interface.write_stream(turn, AnswerId(name, int(time.time())))
            stream = EventStream(
                request,
                lambda on_delta: answers_of(answer, turn, on_delta, in_turn=in_turn),
                writer,
                choices=turn.choices,
            )
            stream.on_answered = count
            await stream.begun()
            return stream
        responses = await unless_gone(request.receive, answers_of(answer, turn, in_turn=in_turn))
        responses[0]["id"] = name
        count(responses)
        return _json(interface.write_answer(turn, responses))

    def _count(self, visitor: Visitor | None, model: str, responses: Sequence[Response]) -> None:
        """Count one request that was answered."""
        self.metrics.tokens(responses)
        if visitor is not None:
            visitor.answered(model, responses)

    async def _answer_for(self, request: Request) -> tuple[Answer, Visitor | None]:
        """What answers a request, and the visitor that it is from where it belongs to no session."""
        session_id = request.path_params.get("session")
        key = _key_of(request)
        if session_id is not None:
            return self.sessions.find(session_id, key).answer, None
        visitor = await self._access.visitor(key)
        return partial(_serve, visitor), visitor

    def _adapter_endpoint(
        self, change: Callable[[Adapters, Any], Awaitable[str]]
    ) -> Callable[[Request], Awaitable[HttpResponse]]:
        async def endpoint(request: Request) -> HttpResponse:
            try:
                await self._access.visitor(_key_of(request))
                if self.adapters is None:
                    raise RequestError("no model of this gateway has adapters", status=404)
                return _json(
                    {"status": "ok", "model": await change(self.adapters, await self._bodies.read_json(request))}
                )
            except RequestError as error:
                return _refusal(request.url.path, error)
            except ClientDisconnect:
                return HttpResponse(status_code=499)  # the client is gone

        return endpoint

    async def _health(self, request: Request) -> HttpResponse:
        return _json({"status": "ok"})

    async def _metrics(self, request: Request) -> HttpResponse:
        return HttpResponse(self.metrics.text(), media_type=self.metrics.media_type)

    async def _list_models(self, request: Request) -> HttpResponse:
        try:
            names = await (await self._access.visitor(_key_of(request))).models()
        except RequestError as error:
            return _refusal(request.url.path, error)
        created = int(time.time())
        data = [{"id": name, "object": "model", "created": created, "owned_by": "whet"} for name in names]
        return _json({"object": "list", "data": data})


async def _serve(visitor: Visitor, turn: TurnRequest, on_delta: OnDelta | None) -> Response:
    client = visitor.find(turn.model)
    if client is None:
        known = ", ".join(await visitor.models()) or "none"
        raise RequestError(
            f"there is no model {turn.model!r} here; there are: {known}",
            status=404,
            param="model",
            code="model_not_found",
        )
    if turn.prompt_ids is not None:
        if not isinstance(client, PolicyClient):
            raise RequestError(f"{turn.model!r} has no engine here that takes token ids", param="model")
        scored = {"prompt_logprobs": True} if turn.prompt_logprobs else {}
        return await client.continue_ids(turn.prompt_ids, turn.model, turn.sampling_args, **scored)
    listening: dict[str, Any] = {} if on_delta is None else {"on_delta": on_delta}
    return await client.get_response(turn.messages, turn.model, turn.sampling_args, turn.tools, **listening)


def _key_of(request: Request) -> str | None:
    """The key a program sends, in the header of either provider."""
    key = request.headers.get("x-api-key")
    if key is not None:
        return key
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _json(body: Mapping[str, Any], status: int = 200) -> HttpResponse:
    # ASCII: what a model wrote may hold half characters, which UTF-8 has no bytes for.
    return HttpResponse(json.dumps(body), status_code=status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> HttpResponse:
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path}: {error.detail}"
    return _refusal(request.url.path, RequestError(said, status=error.status_code))


def _refusal(path: str, error: RequestError) -> HttpResponse:
    """An error in the form of the interface that `path` belongs to."""
    interface = anthropic_messages if path.endswith("/messages") else openai_chat
    return _json(interface.write_error(error), error.status)


async def answers_of(
    answer: Answer, turn: TurnRequest, on_delta: Callable[[int, Delta], None] | None = None, *, in_turn: bool = False
) -> list[Response]:
    """The response of each choice, all requested at once, or one after the other with `in_turn`.

    Choices of a request with a seed have seeds of their own; the first has the request's. `on_delta` receives deltas
    with the number of the choice. Raises `RequestError`; the choices that are not answered by then are cancelled.
    """

    def one(choice: int) -> Awaitable[Response]:
        own = None if on_delta is None else partial(on_delta, choice)
        return _translated(answer, _choice_of(turn, choice), own)

    if turn.choices == 1 or in_turn:
        return [await one(choice) for choice in range(turn.choices)]
    tasks = [asyncio.ensure_future(one(choice)) for choice in range(turn.choices)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _choice_of(turn: TurnRequest, choice: int) -> TurnRequest:
    seed = turn.sampling_args.get("seed")
    if choice == 0 or seed is None:
        return turn
    digest = hashlib.blake2b(f"{seed}/choice {choice}".encode(), digest_size=8).digest()
    return replace(turn, sampling_args={**turn.sampling_args, "seed": int.from_bytes(digest, "big") >> 1})


async def _translated(answer: Answer, turn: TurnRequest, on_delta: OnDelta | None = None) -> Response:
    """The answer; what whet raises is an error of the request, or of the model behind the gateway."""
    try:
        return await answer(turn, on_delta)
    except RequestError:
        raise
    except OverlongPromptError as error:
        raise RequestError(f"prompt is too long: {error}", code="context_length_exceeded") from error
    except (ConfigError, RequestRefusedError) as error:
        raise RequestError(str(error)) from error
    except (EndpointError, EndpointDownError) as error:
        raise RequestError(f"the model cannot be reached: {error}", status=503) from error
    except (Error, WhetError) as error:
        raise RequestError(f"the model failed: {error}", status=502) from error
    except Exception as error:
        logger.exception("a request failed")
        raise RequestError("the gateway failed; its log says how", status=500) from error


# The figures of `/metrics`, for Prometheus: requests by interface and status, their time, tokens, how many at once.


class RequestOutcome:
    """How a request ended; a status of 500 until it is known."""

    status = 500


class GatewayMetrics:
    """The figures of one gateway."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("whet_requests", "Requests answered", ["interface", "status"], registry=self._registry)
        self._seconds = Histogram(
            "whet_request_seconds", "Seconds to the answer", ["interface"], registry=self._registry
        )
        self._in_flight = Gauge("whet_requests_in_flight", "Requests being answered", registry=self._registry)
        self._tokens = Counter("whet_tokens", "Tokens read and written", ["direction"], registry=self._registry)

    @contextmanager
    def request(self, interface: str) -> Iterator[RequestOutcome]:
        """Count one request; the caller sets the outcome's status."""
        outcome, start = RequestOutcome(), time.perf_counter()
        self._in_flight.inc()
        try:
            yield outcome
        finally:
            self._in_flight.dec()
            self._seconds.labels(interface).observe(time.perf_counter() - start)
            self._requests.labels(interface, str(outcome.status)).inc()

    def tokens(self, responses: Sequence[Response]) -> None:
        """Count the tokens of one request's choices, whose prompt is the same."""
        usages = [response.usage for response in responses if response.usage is not None]
        self._tokens.labels("read").inc(max((usage.prompt_tokens for usage in usages), default=0))
        self._tokens.labels("written").inc(sum(usage.completion_tokens for usage in usages))

    def text(self) -> bytes:
        """The figures in Prometheus' text format."""
        return generate_latest(self._registry)
