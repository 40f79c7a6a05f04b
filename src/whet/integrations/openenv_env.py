"""`OpenEnvEnv`: an environment of OpenEnv, `openenv:URL` of a running server, or `openenv:PACKAGE` to start one.

    env = whet.load_environment("openenv:http://localhost:8000", max_turns=8)
    env = whet.load_environment("openenv:./envs/maze_env", python="/opt/openenv/bin/python")

Each rollout has a session of its own: one WebSocket, which OpenEnv's servers give an environment of its own. The rows
are seeds, passed to `reset`; the prompt is the observation that it returns. What the model writes becomes an action by
the schema that the server publishes; a server of MCP tools offers these to the model instead. The reward of a rollout
is the sum of the rewards of its steps. A server that is down, slow or returns junk fails the rollout.

Source of the protocol: openenv 0.10, `openenv/core/env_server/http_server.py` (`/schema`, `/ws`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from whet.decorators import cleanup, stop, teardown
from whet.envs.config.arguments import Check, check_values
from whet.envs.multiturn_env import MultiTurnEnv
from whet.envs.tool_env import read_arguments, tool_message
from whet.envs.tool_schemas import fitted_arguments
from whet.errors import EnvError, InfraError, MissingExtraError
from whet.integrations.gym_env import EpisodicSumRubric
from whet.integrations.openenv_client import (
    ActionRefusedError,
    OpenEnvSession,
    SessionsFullError,
    action_schema,
    offered_tools,
    server_of,
    tool_text,
)
from whet.messages import content_text
from whet.parsing import parse_json
from whet.types import Messages, State, TrajectoryStep, UserMessage

SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.02, 1.0
"""Between attempts to get a session of a server that has none free."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_POSITIVE: tuple[Check, str] = (lambda value: isinstance(value, Real) and float(value) > 0, "a number above 0")
_EXPECTED: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("num_train_examples", "num_eval_examples", "seed"), (Integral, "a whole number")),
    "reset_args": (Mapping, "a dict"),
    "python": (str, "the path of an interpreter"),
    **dict.fromkeys(("message_timeout", "start_timeout", "session_timeout"), _POSITIVE),
    "instructions": (str, "text"),
    "invalid_reward": (Real, "a number"),
}


def load_environment(target: str, **kwargs: Any) -> OpenEnvEnv:
    """The environment `openenv:TARGET`."""
    return OpenEnvEnv(target, **kwargs)


class OpenEnvEnv(MultiTurnEnv):
    """Episodes of an OpenEnv server."""

    def __init__(
        self,
        target: str,
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        seed: int = 0,
        max_turns: int = 20,
        reset_args: Mapping[str, Any] | None = None,
        observation_fields: Sequence[str] | None = None,
        instructions: str | None = None,
        invalid_reward: float = 0.0,
        step_errors_are_invalid: bool = False,
        python: str | None = None,
        message_timeout: float = 60.0,
        start_timeout: float = 120.0,
        session_timeout: float = 600.0,
        **kwargs: Any,
    ) -> None:
        """Make an environment; nothing is connected or started yet.

        Args:
            target: the URL of a server, or a package or folder with `server/app.py`, which is started.
            num_train_examples: episodes to train on, the seeds from `seed` on.
            num_eval_examples: episodes to evaluate on, the seeds after those.
            seed: of the first episode. A server whose `reset` takes no seed ignores it.
            max_turns: model turns after which a rollout ends.
            reset_args: further arguments of the server's `reset`.
            observation_fields: what the model sees of an observation; by default all but `metadata`.
            instructions: how to write an action, after the first observation; by default from the server's schema.
            invalid_reward: of a turn whose text is no action; the server does not see it.
            step_errors_are_invalid: whether an action at which the environment's code raises counts as no action; by
                default it fails the rollout.
            python: the interpreter that a package is started with, in which openenv is installed; by default this one.
            message_timeout: seconds that the server has to respond to a message.
            start_timeout: seconds that a server that is started has to respond.
            session_timeout: seconds that a rollout waits for a session while the server has none free.
            kwargs: arguments of `MultiTurnEnv`; the default rubric is the sum of the rewards.
        """
        check_values(self, locals(), _EXPECTED)
        try:
            import websockets  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("an OpenEnv environment", "openenv") from error
        self.target = target
        self.reset_args = dict(reset_args or {})
        self.observation_fields = None if observation_fields is None else list(observation_fields)
        self.instructions, self.invalid_reward = instructions, float(invalid_reward)
        self.step_errors_are_invalid = step_errors_are_invalid
        self.message_timeout, self.session_timeout = float(message_timeout), float(session_timeout)
        self._server = server_of(target, python, start_timeout)
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._schema: dict[str, Any] | None = None
        rows = [{"prompt": [], "answer": "", "info": {"seed": seed + n}} for n in range(num_train_examples)]
        held_out = range(seed + num_train_examples, seed + num_train_examples + num_eval_examples)
        super().__init__(
            dataset=rows or None,
            eval_dataset=[{"prompt": [], "answer": "", "info": {"seed": n}} for n in held_out] or None,
            max_turns=max_turns,
            **{"rubric": EpisodicSumRubric(), **kwargs},
        )

    async def setup_state(self, state: State) -> None:
        url = self._server if isinstance(self._server, str) else await asyncio.to_thread(self._server.url)
        if self._schema is None:
            self._schema = await action_schema(url, self.message_timeout)
        schema = self._schema
        arguments = {"seed": state["info"]["seed"], **self.reset_args}
        session, first = await self._begin(url, {"type": "reset", "data": arguments}, state)
        text, instructions = self._text(first), self.instructions
        if _has_tools(schema):
            tools = await session.ask({"type": "step", "data": {"type": "list_tools"}})
            state["tool_defs"] = offered_tools(tools)
        elif instructions is None:
            instructions = _instructions(schema)
        state["prompt"] = [*state["prompt"], UserMessage("\n\n".join(filter(None, (text, instructions))))]
        if first["done"]:
            state["final_env_response"] = []

    async def _begin(self, url: str, message: dict[str, Any], state: State) -> tuple[OpenEnvSession, dict[str, Any]]:
        """A session and its first observation; waits while the server has no session free."""
        until, wait = time.monotonic() + self.session_timeout, SHORTEST_WAIT_S
        while True:
            state["openenv_session"] = session = OpenEnvSession(url, self.message_timeout)
            try:
                return session, await session.ask(message)
            except SessionsFullError as error:
                await session.close()
                if time.monotonic() + wait > until:
                    raise InfraError(f"{error}, and none was free in {self.session_timeout:.0f} s") from None
            wait = SHORTEST_WAIT_S if await self._released(wait) else min(2 * wait, LONGEST_WAIT_S)

    async def _released(self, seconds: float) -> bool:
        """Whether a session of this environment was closed within so many seconds, and this rollout is next."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                return bool(await turn)
        except TimeoutError:
            return False

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        """Take the step at once, so that the last turn of an episode has its reward too."""
        await super().add_trajectory_step(state, trajectory_step)
        message, session = trajectory_step["completion"][-1], state["openenv_session"]
        trajectory_step["reward"] = 0.0
        if _has_tools(self._schema or {}):
            answers: Messages = []
            for call in message.get("tool_calls") or []:
                answers.append(await self._call(session, call, state, trajectory_step))
            state["openenv_answer"] = answers
        else:
            answer = self.parser.parse_answer(trajectory_step["completion"])
            text = content_text(message["content"]) if answer is None else str(answer)
            try:
                action = _action(text, self._schema or {})
                reply = await session.ask({"type": "step", "data": action})
            except (ValueError, ActionRefusedError, EnvError) as error:  # what the model wrote is no action
                if isinstance(error, EnvError) and not self.step_errors_are_invalid:
                    raise
                trajectory_step["reward"] = self.invalid_reward
                state["openenv_answer"] = [UserMessage(f"This is not an action: {error}")]
                return
            self._record(reply, trajectory_step, state)
            state["openenv_answer"] = [UserMessage(self._text(reply))]
        if state.get("openenv_done"):
            state["final_env_response"] = state["openenv_answer"]

    async def _call(self, session: OpenEnvSession, call: Any, state: State, step: TrajectoryStep) -> Any:
        tool = next((tool for tool in state["tool_defs"] if tool["name"] == call["name"]), None)
        try:
            action = {"type": "call_tool", "tool_name": call["name"]}
            action["arguments"] = read_arguments(call["arguments"], tool)
            reply = await session.ask({"type": "step", "data": action})
        except (ValueError, RecursionError, ActionRefusedError) as error:
            return tool_message(f"Error: {error}", call["id"])
        self._record(reply, step, state)
        return tool_message(tool_text(reply["observation"]), call["id"])

    def _record(self, reply: Mapping[str, Any], step: TrajectoryStep, state: State) -> None:
        step["reward"] = (step["reward"] or 0.0) + reply["reward"]
        state["openenv_done"] = state.get("openenv_done", False) or reply["done"]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        return list(state["openenv_answer"])

    @stop(priority=1)  # before the final response, which ends every episode
    async def is_done(self, state: State) -> bool:
        return bool(state.get("openenv_done", False))

    @stop
    async def no_tools_called(self, state: State) -> bool:
        return bool(state["trajectory"]) and state.get("openenv_answer") == []

    @cleanup
    async def close_session(self, state: State) -> None:
        session = state.pop("openenv_session", None)
        if session is not None:
            await session.close()
            while self._waiting:
                turn = self._waiting.popleft()
                if not turn.done():  # or it has given up
                    turn.set_result(True)
                    break

    @teardown
    async def stop_server(self) -> None:
        if not isinstance(self._server, str):
            self._server.close()

    def _text(self, reply: Mapping[str, Any]) -> str:
        """An observation for the model: its only text as it is, else its fields as JSON."""
        observation = reply["observation"]
        if self.observation_fields is not None:
            kept = {name: observation[name] for name in self.observation_fields if name in observation}
        else:
            kept = {k: v for k, v in observation.items() if k != "metadata" and v not in (None, "", [], {})}
            kept = kept or observation.get("metadata") or {}
        values = list(kept.values()) or [""]
        return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(kept, ensure_ascii=False)


def _fields(schema: Mapping[str, Any]) -> list[str]:
    """The fields of an action that a model has to give; of one that requires none, all."""
    names = [name for name in schema["properties"] if name != "metadata"]
    required = schema.get("required")
    return [name for name in names if isinstance(required, list) and name in required] or names


def _has_tools(schema: Mapping[str, Any]) -> bool:
    """Whether actions are calls of MCP tools."""
    names = {name for name in schema["properties"] if name != "metadata"}
    return not names or {"tool_name", "arguments"} <= names


def _instructions(schema: Mapping[str, Any]) -> str:
    shown = {name: _resolved(schema, name) for name in schema["properties"] if name != "metadata"}
    if len(_fields(schema)) > 1:
        return f"Answer with one JSON object, an action of this schema: {json.dumps(shown)}"
    (name,) = _fields(schema)
    choices, kind = shown[name].get("enum"), shown[name].get("type")
    about = shown[name].get("description")
    what = f"one of {', '.join(map(str, choices))}" if isinstance(choices, list) else f"the {name}"
    kind = f" ({kind})" if kind and kind != "string" else ""
    return f"Answer with {what}{kind}{f': {about}' if about else '.'}"


def _resolved(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    field = schema["properties"][name]
    field = field if isinstance(field, dict) else {}
    inner = (schema.get("$defs") or {}).get(str(field.get("$ref")).rpartition("/")[2])
    return {**inner, **field} if isinstance(inner, dict) else field


def _action(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The action that a model wrote. Raises ValueError, for the model to read."""
    names = _fields(schema)
    if len(names) > 1:
        opening, end = text.find("{"), text.rfind("}")
        if opening < 0 or end < opening:
            raise ValueError(f"write one JSON object with {', '.join(names)}")
        return fitted_arguments(dict(parse_json(text[opening : end + 1])), schema)
    (name,), field = names, _resolved(schema, names[0])
    choices = [str(choice) for choice in field.get("enum") or ()]
    inside: list[str] = []
    if choices:
        inside = re.findall("|".join(rf"\b{re.escape(choice)}\b" for choice in choices), text)
    elif field.get("type") in ("integer", "number"):
        inside = _NUMBER.findall(text)
    for candidate in inside[-1:]:
        with contextlib.suppress(ValueError):
            return fitted_arguments({name: candidate}, schema)
    return fitted_arguments({name: text.strip()}, schema)
