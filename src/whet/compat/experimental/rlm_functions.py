"""The functions that code in the sandbox of an `RLMEnv` calls: the environment's own `llm_batch`, and root tools.

A call comes to this process as a chat message to the rollout's address, and its result goes back as the answer.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from whet.calls import resolve
from whet.compat.experimental.rlm_metrics import count_root_call, count_step
from whet.envs.environment import Environment
from whet.envs.multiturn_env import trajectory_step
from whet.envs.tool_env import read_arguments, tool_message
from whet.errors import Error, WhetError
from whet.messages import content_text
from whet.types import Messages, Response, ResponseMessage, State, SystemMessage, Tool, TrajectoryStep, UserMessage


class FunctionSession:
    """The calls of functions by the code of one rollout, as the gateway sees it: each a chat message in JSON."""

    needs_key = False  # the address is known to the rollout's sandbox alone

    def __init__(self, state: State, call: Callable[[State, str, list[Any], dict[str, Any]], Any]) -> None:
        self.state = state
        self._call = call
        self.stopped_by: Error | WhetError | None = None

    async def respond(
        self, messages: Messages, tools: Any = None, headers: Mapping[str, str] | None = None, model: str = ""
    ) -> Response:
        """What the function returns, or the text of its error."""
        try:
            wanted = json.loads(content_text(messages[-1]["content"]))
            result = await self._call(self.state, wanted["tool"], wanted.get("args") or [], wanted.get("kwargs") or {})
            said = json.dumps({"result": result}, default=str)
        except (Error, WhetError) as error:  # of the model's host: the rollout's error, not the code's
            self.stopped_by = error
            said = json.dumps({"error": "the call could not be made"})
        except Exception as error:
            said = json.dumps({"error": f"{type(error).__name__}: {error}"})
        message = ResponseMessage(content=said, finish_reason="stop", is_truncated=False)
        return Response(id="call", created=int(time.time()), model="function", usage=None, message=message)


class RLMFunctions(Environment):
    """`call_root_tool`, and what it needs of an `RLMEnv`."""

    root_tool_names: list[str]
    root_tool_map: dict[str, Callable[..., Any]]
    sub_tool_map: dict[str, Callable[..., Any]]
    sub_tool_defs: list[Tool]
    sub_model: str | None
    enable_sub_llms: bool
    include_sub_llm_in_trajectory: bool
    sub_llm_max_turns: int
    max_sub_llm_parallelism: int
    sub_max_completion_tokens: int | None
    root_max_completion_tokens: int | None

    async def call_root_tool(self, state: State, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a function returns to the code in the sandbox; an exception is raised there."""
        if name not in self.root_tool_names:
            raise ValueError(f"there is no function {name!r}; there are: {', '.join(self.root_tool_names)}")
        start = time.monotonic()
        try:
            if name == "llm_batch":
                return await self._llm_batch(state, *args, **kwargs)
            return await resolve(self.root_tool_map[name](*args, **kwargs))
        finally:
            count_root_call(state, name, time.monotonic() - start)

    async def _llm_batch(self, state: State, prompts: list[str]) -> list[str]:
        if not self.enable_sub_llms or not isinstance(prompts, list):
            raise ValueError("llm_batch takes a list of prompts")
        batch, free = uuid.uuid4().hex[:8], asyncio.Semaphore(self.max_sub_llm_parallelism)

        async def ask(number: int, prompt: str) -> str:
            async with free:
                if self._spent(state, "sub"):
                    return "The token budget of llm_batch is used up. Answer with what you have."
                return await self._sub_model(state, str(prompt), {"batch_id": batch, "request_id": str(number)})

        return list(await asyncio.gather(*(ask(number, prompt) for number, prompt in enumerate(prompts))))

    async def _sub_model(self, state: State, prompt: str, ids: dict[str, str]) -> str:
        """The answer of a fresh copy of the model, after at most `sub_llm_max_turns` turns with tools."""
        opening = f"You have {self.sub_llm_max_turns} turns to do your task."
        messages: Messages = [SystemMessage(opening), UserMessage(prompt)]
        extras = {"is_sub_llm_call": True, **ids, "parent_turn": len(self._main_steps(state))}
        for turn in range(self.sub_llm_max_turns + 1):
            tools = self.sub_tool_defs if turn < self.sub_llm_max_turns and not self._spent(state, "sub") else []
            if turn and not tools:
                messages = [
                    *messages,
                    UserMessage("You cannot call tools any more. Give your answer inside \\boxed{}."),
                ]
            model = self.sub_model or state["model"]
            response = await self.get_model_response(state, messages, model=model, tool_defs=tools)
            step = trajectory_step(messages, response, f"{ids['batch_id']}_{ids['request_id']}", self.max_seq_len)
            calls = step["completion"][-1].get("tool_calls") or []
            step["extras"] = {**extras, "tool_call_count": len(calls), "sub_turn": turn}
            count_step(state, step)
            if self.include_sub_llm_in_trajectory:
                state["trajectory"].append(step)
            if not calls or not tools:
                count_step(state, None, out_of_turns=bool(turn and not tools))
                return content_text(step["completion"][-1].get("content") or "")
            messages = [*messages, *step["completion"], *[await self._sub_tool(call) for call in calls]]
        raise AssertionError("the last turn has no tools")

    async def _sub_tool(self, call: Any) -> Any:
        try:
            definition = next((tool for tool in self.sub_tool_defs if tool["name"] == call["name"]), None)
            arguments = read_arguments(call["arguments"], definition)
            return tool_message(await resolve(self.sub_tool_map[call["name"]](**arguments)), call["id"])
        except (Error, WhetError):
            raise
        except Exception as error:
            return tool_message(f"Error: {type(error).__name__}: {error}", call["id"])

    def _spent(self, state: State, whose: str) -> bool:
        budget = self.sub_max_completion_tokens if whose == "sub" else self.root_max_completion_tokens
        return budget is not None and state.get(f"{whose}_llm_completion_tokens", 0) >= budget

    def _main_steps(self, state: State) -> list[TrajectoryStep]:
        """The root model's turns."""
        return [step for step in state["trajectory"] if step["trajectory_id"] == state["trajectory_id"]]
