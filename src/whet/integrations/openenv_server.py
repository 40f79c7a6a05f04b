"""`whet env serve ENV`: an environment of whet as an OpenEnv server, an episode for each WebSocket.

    {"type": "reset", "data": {"seed": 3}}           row 3 of the training rows; {"split": "eval"} of the others
    {"type": "step", "data": {"message": "..."}}     what the model said, and with `tool_calls` the tools it calls

An observation has the `messages` that are new and the `tools` that the model may call. The reward is that of the
rubric, with the last observation; before that it is null. Source of the protocol: see `openenv_env.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from whet.calls import describe
from whet.clients.scripted import ScriptedClient
from whet.envs.environment import Environment
from whet.errors import ConfigError, EnvError, MissingExtraError
from whet.gateway.serve import address_of, listen
from whet.integrations.openenv_client import MAX_BYTES
from whet.parsing import parse_json
from whet.rollouts.groups import run_group
from whet.system.offline import is_loopback
from whet.types import AssistantMessage, Messages, RolloutInput, State, Tool, ToolCall


class CallOfTool(BaseModel):
    """One call of a tool."""

    model_config = ConfigDict(extra="forbid")
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class MessageAction(BaseModel):
    """What the model says in a turn."""

    model_config = ConfigDict(extra="forbid")
    message: str = Field(description="The model's answer.")
    tool_calls: list[CallOfTool] = Field(default_factory=list, description="The tools that it calls.", max_length=64)
    metadata: dict[str, Any] = Field(default_factory=dict)


class MessagesObservation(BaseModel):
    """The messages since the last turn, and the tools that may be called."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)


class EpisodeReset(BaseModel):
    """Which row is attempted."""

    seed: int | None = Field(None, ge=0)
    split: str = Field("train", pattern="^(train|eval)$")


class Episode:
    """One attempt of a row, whose model is at the other end of a WebSocket."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._task: asyncio.Task[list[State]] | None = None
        self._begin()

    def _begin(self) -> None:
        self.steps = self._seen = 0
        self._requests: asyncio.Queue[tuple[Messages, list[Tool] | None]] = asyncio.Queue()
        self._answers: asyncio.Queue[AssistantMessage] = asyncio.Queue()

    async def reset(self, wanted: EpisodeReset) -> dict[str, Any]:
        await self.close()
        self._begin()
        rows = self._env.get_eval_dataset() if wanted.split == "eval" else self._env.get_dataset()
        row = cast(RolloutInput, rows[(wanted.seed or 0) % len(rows)])
        self._task = asyncio.create_task(run_group(self._env, [row], ScriptedClient(self._answer), "openenv", {}))
        return await self._next()

    async def step(self, action: MessageAction) -> dict[str, Any]:
        calls = [
            ToolCall(id=f"call_{self.steps}_{number}", name=call.name, arguments=json.dumps(call.arguments))
            for number, call in enumerate(action.tool_calls)
        ]
        return await self.say(AssistantMessage(action.message, tool_calls=calls or None))

    async def say(self, message: AssistantMessage) -> dict[str, Any]:
        """The observation after the model's turn."""
        if self._task is None or self._task.done():
            raise EnvError("there is no episode to take a step in; send reset first")
        self.steps += 1
        self._answers.put_nowait(message)
        return await self._next()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _answer(self, prompt: Messages, tools: list[Tool] | None) -> AssistantMessage:
        self._requests.put_nowait((prompt, tools))
        return await self._answers.get()

    async def _next(self) -> dict[str, Any]:
        """The observation before the next turn, or the last one."""
        assert self._task is not None
        request = asyncio.create_task(self._requests.get())
        try:
            await asyncio.wait({request, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                prompt, tools = request.result()
                new = prompt[self._seen :] if self._seen <= len(prompt) else prompt
                self._seen = len(prompt) + 1  # with the answer to come
                return _observation(new, tools, None, done=False)
        finally:
            request.cancel()
        (state,) = self._task.result()
        if state["error"] is not None:
            raise EnvError(describe(state["error"]))
        whole = [*state["prompt"], *(state["completion"] or [])]
        return _observation(whole[self._seen :], None, float(state["reward"] or 0.0), done=True)


def _observation(messages: Messages, tools: list[Tool] | None, reward: float | None, *, done: bool) -> dict[str, Any]:
    shown = MessagesObservation(messages=[dict(message) for message in messages], tools=[dict(t) for t in tools or ()])
    return {"observation": shown.model_dump(), "reward": reward, "done": done}


class OpenEnvApp:
    """The server of one environment, with at most `sessions` WebSockets at once."""

    def __init__(self, env: Environment, sessions: int = 64) -> None:
        self._env, self._most, self._open = env, sessions, 0
        state = {"type": "object", "properties": {"step_count": {"type": "integer"}}}
        schema = {
            "action": MessageAction.model_json_schema(),
            "observation": MessagesObservation.model_json_schema(),
            "state": state,
        }
        metadata = {"name": env.env_id, "description": f"environment {env.env_id} of whet", "version": None}
        self.app = Starlette(
            routes=[
                Route("/health", _fixed({"status": "healthy"})),
                Route("/schema", _fixed(schema)),
                Route("/metadata", _fixed(metadata)),
                WebSocketRoute("/ws", self._session),
            ]
        )

    async def _session(self, socket: WebSocket) -> None:
        if "origin" in socket.headers:  # a page of a browser, which may be any site's
            await socket.close(code=1008)
            return
        await socket.accept()
        if self._open >= self._most:
            await _fail(socket, "CAPACITY_REACHED", f"all {self._most} sessions are in use")
            await socket.close()
            return
        self._open += 1
        episode = Episode(self._env)
        try:
            while await self._exchange(socket, episode):
                pass
        except WebSocketDisconnect:
            return
        finally:
            self._open -= 1
            await episode.close()
        await socket.close()

    async def _exchange(self, socket: WebSocket, episode: Episode) -> bool:
        """Answer one message; whether there may be more."""
        try:
            message = parse_json(await socket.receive_text(), MAX_BYTES)
            kind, data = (message.get("type"), message.get("data")) if isinstance(message, Mapping) else (None, None)
            if kind == "close":
                return False
            if kind == "state":
                await socket.send_json({"type": "state", "data": {"episode_id": None, "step_count": episode.steps}})
            elif kind == "reset":
                reply = await episode.reset(EpisodeReset.model_validate({} if data is None else data))
                await socket.send_json({"type": "observation", "data": reply})
            elif kind == "step":
                reply = await episode.step(MessageAction.model_validate(data))
                await socket.send_json({"type": "observation", "data": reply})
            else:
                await _fail(socket, "UNKNOWN_TYPE", "type should be reset, step, state or close")
        except ValidationError as error:
            details = [{"loc": one["loc"], "msg": one["msg"]} for one in error.errors(include_url=False)]
            await _fail(socket, "VALIDATION_ERROR", "the message is not valid", errors=details)
        except WebSocketDisconnect:
            raise
        except ValueError as error:
            await _fail(socket, "INVALID_JSON", str(error))
        except Exception as error:
            await _fail(socket, "EXECUTION_ERROR", describe(error))
        return True


def serve(app: Any, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve an ASGI application until interrupted; `on_ready` is called with the address. Raises `ConfigError`."""
    try:
        import uvicorn
        import websockets  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("whet env serve", "openenv") from error
    from whet.gateway.patience import PatientConnection

    if not is_loopback(host):
        raise ConfigError(
            f"host {host} is open to other machines, and the protocol has no key. Listen on 127.0.0.1, and let a "
            "tunnel or a proxy that checks who connects pass requests on."
        )
    with listen(host, port) as listening:
        options = uvicorn.Config(
            app, http=PatientConnection, ws_max_size=MAX_BYTES, log_level="warning", lifespan="off"
        )
        on_ready(address_of(listening))
        uvicorn.Server(options).run(sockets=[listening])


async def _fail(socket: WebSocket, code: str, message: str, **more: Any) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_json({"type": "error", "data": {"message": message, "code": code, **more}})


def _fixed(body: Mapping[str, Any]) -> Any:
    async def endpoint(request: Request) -> Response:
        return JSONResponse(body)

    return endpoint
