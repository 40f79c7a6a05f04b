"""`whet env serve ENV --as nemo-gym`: an environment of whet as a resources server of NeMo-Gym's gymnasium agent.

    GET  /rows/train.jsonl    the rows for NeMo-Gym's dataset, each with the number of its row in `whet`
    POST /reset               a row: begins its episode, in a session of its own, known by a cookie
    POST /step                the row and the model's `response`: what it reads next, what tools returned, the reward

The reward is that of the rubric, with the last step. An episode that fails is an error of HTTP, and no reward. One that
its agent leaves is forgotten when all sessions are in use and it was idle for `IDLE_S`.

Source of the protocol: nemo-gym 0.4, `resources_servers/gymnasium/base.py`, `responses_api_agents/gymnasium_agent`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from whet.calls import describe
from whet.envs.environment import Environment
from whet.errors import EnvError, WhetError
from whet.gateway.bodies import Bodies
from whet.gateway.guard import GatewayGuard, Hosts
from whet.gateway.interfaces.openai_responses import read_items
from whet.gateway.wire import RequestError
from whet.integrations.openenv_server import Episode, EpisodeReset
from whet.messages import as_message, content_text
from whet.parsing import as_number
from whet.types import AssistantMessage, Tool

COOKIE = "whet_session"
IDLE_S = 600.0
_Endpoint = Callable[[Any, str], Awaitable[Response]]


class NemoGymApp:
    """The server of one environment, with at most `sessions` episodes at once."""

    def __init__(self, env: Environment, sessions: int = 1024) -> None:
        self._env, self._most, self._bodies = env, sessions, Bodies()
        self._episodes: dict[str, tuple[Episode, float]] = {}
        """By session, with the time of its last request; the one that is idle longest comes first."""
        routes = [
            Route("/", _alive),
            Route("/rows/{split}.jsonl", self._rows),
            *(
                Route(path, self._endpoint(answer), methods=["POST"])
                for path, answer in (("/reset", self._reset), ("/step", self._step), ("/aggregate_metrics", _aggregate))
            ),
        ]
        self.app = GatewayGuard(Starlette(routes=routes), Hosts(), lambda scope, error: _refusal(error))

    async def _rows(self, request: Request) -> Response:
        split = request.path_params["split"]
        if split not in ("train", "eval"):
            return _refusal(RequestError("the rows are /rows/train.jsonl and /rows/eval.jsonl", status=404))
        rows = self._env.get_eval_dataset() if split == "eval" else self._env.get_dataset()
        tools = [_function(tool) for tool in self._env.tool_defs or ()]
        lines = []
        for number, row in enumerate(rows):
            params = {"input": [_input_item(message) for message in row["prompt"]], "tools": tools}
            lines.append(json.dumps({"responses_create_params": params, "whet": {"seed": number, "split": split}}))
        return Response("".join(f"{line}\n" for line in lines), media_type="application/jsonl")

    def _endpoint(self, answer: _Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                body = await self._bodies.read_json(request)
                if not isinstance(body, dict):
                    raise RequestError("the body should be a JSON object")
                return await answer(body, request.cookies.get(COOKIE, ""))
            except RequestError as error:
                return _refusal(error)
            except ClientDisconnect:
                return Response(status_code=499)
            except (EnvError, WhetError) as error:
                return _refusal(RequestError(describe(error), status=500))

        return endpoint

    async def _reset(self, body: Any, session: str) -> Response:
        try:
            wanted = EpisodeReset.model_validate(body.get("whet"))
        except ValidationError:
            raise RequestError("the row is none of /rows/train.jsonl or /rows/eval.jsonl: it has no 'whet'") from None
        known, tools = _row(_mapping(body, "responses_create_params"))
        await self._close(session)
        await self._make_room()
        episode, session = Episode(self._env), secrets.token_hex(16)
        self._episodes[session] = (episode, time.monotonic())
        try:
            observation = (await episode.reset(wanted))["observation"]
            shown = observation["messages"]
            if [_plain(message) for message in shown[: len(known)]] != known:
                raise RequestError("the conversation of the row is not that of this environment; fetch the rows again")
            if lacking := {tool["name"] for tool in observation["tools"]} - tools:
                raise RequestError(f"the row lacks tools of the environment: {', '.join(sorted(lacking))}")
        except BaseException:
            await self._close(session)
            raise
        return _with_cookie(session, {"observation": _text(shown[len(known) :]), "info": {}})

    async def _step(self, body: Any, session: str) -> Response:
        if session not in self._episodes:
            raise RequestError("there is no episode to take a step in; send /reset first", status=409)
        episode, _ = self._episodes.pop(session)
        self._episodes[session] = (episode, time.monotonic())
        output = _mapping(body, "response").get("output")
        if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
            raise RequestError("response.output should be a list of items", param="response.output")
        messages = [as_message(message) for message in read_items(output)]
        if len(messages) != 1 or not isinstance(messages[0], AssistantMessage):
            raise RequestError("response.output should be one turn of the model", param="response.output")
        done = True
        try:
            reply = await episode.say(messages[0])
            done = reply["done"]
        finally:
            if done:
                await self._close(session)
        new = reply["observation"]["messages"]
        returned = [
            {"call_id": message["tool_call_id"], "output": content_text(message["content"])}
            for message in new
            if message["role"] == "tool"
        ]
        return _with_cookie(
            session,
            {
                "observation": _text([message for message in new if message["role"] != "tool"]),
                "reward": reply["reward"] or 0.0,
                "terminated": done,
                "truncated": False,
                "info": {"tool_outputs": returned},
            },
        )

    async def _make_room(self) -> None:
        """Raises `RequestError` where all sessions are in use."""
        if len(self._episodes) < self._most:
            return
        oldest, (_, last) = next(iter(self._episodes.items()))
        if time.monotonic() - last < IDLE_S:
            raise RequestError(f"all {self._most} sessions are in use", status=503)
        await self._close(oldest)

    async def _close(self, session: str) -> None:
        episode, _ = self._episodes.pop(session, (None, 0.0))
        if episode is not None:
            await episode.close()


async def _alive(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _aggregate(body: Any, session: str) -> Response:
    """The mean reward of `verify_responses`, which NeMo-Gym asks for at the end of a collection."""
    rows = body.get("verify_responses")
    rewards = [as_number(row.get("reward")) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    known = [reward for reward in rewards if reward is not None]
    if not rewards or len(known) < len(rewards):
        raise RequestError("verify_responses should be a list of objects with a reward")
    mean = {"mean/reward": sum(known) / len(known)}
    return JSONResponse({"group_level_metrics": [], "agent_metrics": mean, "key_metrics": mean})


def _with_cookie(session: str, body: Mapping[str, Any]) -> Response:
    """Every answer has the cookie: the agent keeps those of the last answer only."""
    response = JSONResponse(body)
    response.set_cookie(COOKIE, session, httponly=True)
    return response


def _refusal(error: RequestError) -> Response:
    return JSONResponse({"error": str(error)}, status_code=error.status)


def _mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} should be an object", param=name)
    return value


def _row(params: Mapping[str, Any]) -> tuple[list[tuple[str, str]], set[str]]:
    """The conversation of a row, and the names of its tools."""
    items, tools = params.get("input"), params.get("tools") or []
    if not all(isinstance(some, list) and all(isinstance(one, dict) for one in some) for some in (items, tools)):
        raise RequestError("input and tools of responses_create_params should be lists of objects")
    return [_plain(message) for message in read_items(items or [])], {str(tool.get("name")) for tool in tools}


def _input_item(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] not in ("system", "user", "developer", "assistant") or not isinstance(content, str):
        raise EnvError("only rows whose prompts are texts can be served to NeMo-Gym")
    return {"type": "message", "role": message["role"], "content": content}


def _function(tool: Tool) -> dict[str, Any]:
    given = {"name": tool["name"], "description": tool["description"], "parameters": tool["parameters"]}
    return {"type": "function", **given, "strict": False}


def _plain(message: Mapping[str, Any]) -> tuple[str, str]:
    return message["role"], content_text(message["content"])


def _text(messages: Sequence[Mapping[str, Any]]) -> str | None:
    return "\n\n".join(content_text(message["content"]) for message in messages) or None
