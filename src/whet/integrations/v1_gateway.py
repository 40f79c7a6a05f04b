"""The models of tasksets of verifiers 0.4: a gateway on loopback that records the calls of each rollout's model.

    the taskset's process ── /inference/v1/generate ──▶ PolicyClient ──▶ engine         ids in; ids and logprobs out
                          ── /v1/chat/completions ────▶ any other client                messages in, a message out

A rollout is a model of this gateway, called by the rollout's id. What is trained on is what was recorded here, so the
taskset's process can neither add tokens nor change them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import uvicorn
from starlette.types import Receive, Scope, Send

from whet.clients.client import AnyClient, Client, OnDelta, StreamedAnswer
from whet.clients.usage import charge
from whet.gateway.app import Gateway
from whet.gateway.connections import limited_connections
from whet.gateway.serve import address_of, listen
from whet.inference.policy_client import PolicyClient
from whet.inference.rendering.renderer_choice import choose_renderer
from whet.inference.sampling_args import read_sampling_args, turn_seed
from whet.types import Messages, Response, SamplingArgs, State, TimeSpan, Tool

TRACE = b"x-session-id"
"""Header that verifiers' clients send: the id of the trace that the request is a turn of."""
_trace: ContextVar[str] = ContextVar("whet_v1_trace", default="")


class Call(NamedTuple):
    """One answer of the model. `prompt` is None for a request of token ids."""

    trace: str
    prompt: Messages | None
    response: Response


class Recorder:
    """The calls of one rollout, in the order of their answers, and the first error of its model."""

    def __init__(self, state: State) -> None:
        self.calls: list[Call] = []
        self.error: Exception | None = None
        self._state, self._begun = state, 0

    def client_settings(self) -> dict[str, Any]:
        """Which of verifiers' clients is used, and what it has to know: the renderer of a policy, or nothing."""
        client = self._state["client"]
        if not isinstance(client, PolicyClient):
            return {"renderer": None, "sampling": {}}
        thinking = read_sampling_args(self._state["sampling_args"] or {}).enable_thinking
        sampling = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
        tokenizer = client.renderer.tokenizer
        config = choose_renderer(tokenizer).model_dump(mode="json")
        return {"renderer": {"renderer": config, "renderer_model_name": tokenizer.name_or_path}, "sampling": sampling}

    def sampling(self, of_request: Mapping[str, Any]) -> SamplingArgs:
        """The rollout's own sampling arguments, with those of a request over them, and a seed of the turn's own."""
        own = dict(self._state["sampling_args"] or {})
        args = {**own, **of_request}
        if own.get("seed") is not None and "seed" not in of_request:
            args["seed"] = turn_seed(own["seed"], self._begun)
        self._begun += 1
        return args

    def record(self, prompt: Messages | None, response: Response) -> Response:
        self._state["usage"].add_response(response)
        self.calls.append(Call(_trace.get(), prompt, response))
        return response

    @contextlib.contextmanager
    def noting(self) -> Any:
        """Keep the time of a call and what is raised, which reaches the taskset's process as an HTTP status only."""
        start = time.time()
        try:
            yield
        except Exception as error:
            self.error = self.error or error
            raise
        self._state["timing"].model.spans.append(TimeSpan(start, time.time()))


class RecordedPolicy(PolicyClient):
    """A policy, for requests of token ids."""

    def __init__(self, policy: PolicyClient, recorder: Recorder) -> None:
        super().__init__(policy.engine, policy.renderer, max_context=policy.max_context, adapter=policy.adapter)
        self._recorder = recorder

    async def continue_ids(
        self, prompt_ids: list[int], model: str, sampling_args: SamplingArgs, *, prompt_logprobs: bool = False
    ) -> Response:
        with self._recorder.noting():
            sampling = self._recorder.sampling(sampling_args)
            response = await super().continue_ids(prompt_ids, model, sampling, prompt_logprobs=prompt_logprobs)
        charge(response)
        return self._recorder.record(None, response)


class RecordedClient(Client[None, Any, Any, Any]):
    """Any other client, for requests of messages."""

    def __init__(self, client: AnyClient, model: str, state: State, recorder: Recorder) -> None:
        super().__init__(None)
        self._inner, self._model, self._recorder, self._state = client, model, recorder, state

    async def get_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Tool] | None = None,
        *,
        state: State | None = None,
        on_delta: OnDelta | None = None,
        **kwargs: Any,
    ) -> Response:
        with self._recorder.noting():
            args = {**(self._state["sampling_args"] or {}), **sampling_args}
            turns = State(self._state, trajectory=[{}] * len(self._recorder.calls))
            response: Response = await self._inner.get_response(prompt, self._model, args, tools, state=turns)
        if on_delta is not None:
            on_delta(StreamedAnswer().rest(response.message))
        return self._recorder.record(prompt, response)


class V1Gateway:
    """The server of one event loop."""

    def __init__(self, key: str) -> None:
        self._gateway = Gateway({}, api_key=key)
        self._listening = listen("127.0.0.1", 0)
        self.url = f"{address_of(self._listening)}/v1"
        self.loop = asyncio.get_running_loop()
        options = uvicorn.Config(
            self._app, http=limited_connections(), ws="none", log_config=None, access_log=False, lifespan="off"
        )
        options.timeout_graceful_shutdown, options.interface = 1, "asgi3"
        self._server = uvicorn.Server(options)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
        self._serving = self.loop.create_task(self._serve(), name="whet gateway of tasksets")

    def add(self, state: State, client: AnyClient, model: str) -> Recorder:
        """Answer for the model of a rollout, until it is removed."""
        recorder = Recorder(state)
        self._gateway.models[state["trajectory_id"]] = (
            RecordedPolicy(client, recorder)
            if isinstance(client, PolicyClient)
            else RecordedClient(client, model, state, recorder)
        )
        return recorder

    def remove(self, state: State) -> None:
        self._gateway.models.pop(state["trajectory_id"], None)

    async def close(self) -> None:
        self._server.should_exit = True
        if self.loop is asyncio.get_running_loop():
            await asyncio.wait({self._serving})
        self._listening.close()

    async def _serve(self) -> None:
        with self._listening:
            await self._server.serve(sockets=[self._listening])

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        _trace.set(dict(scope.get("headers", ())).get(TRACE, b"").decode("latin-1")[:64])
        await self._gateway.app(scope, receive, send)
