"""`ToolEnv`: the model calls Python functions until it answers without calling one.

The error of a failing call is the tool's answer, for the model to handle, unless it is one of `stop_errors`. An
`InfraError` fails the rollout: the host of the tool failed, which no model can repair.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Signature
from typing import Any

from whet.calls import name_of, resolve
from whet.decorators import stop
from whet.envs.config.arguments import Check, check_values, nearest
from whet.envs.multiturn_env import MultiTurnEnv
from whet.envs.tool_schemas import call_spread, fitted_arguments, spread_signature, tool_from_function
from whet.errors import ConfigError, InfraError, SandboxFileError, ToolCallError, ToolParseError, WhetError
from whet.rubrics.rubric import Rubric
from whet.system.origins import is_written_for_verifiers
from whet.types import Messages, State, Tool, ToolCall, ToolMessage

_EXPECTED: dict[str, tuple[Check, str]] = {
    "tools": (lambda tools: isinstance(tools, Iterable) and not isinstance(tools, str), "a list of functions"),
    "error_formatter": (callable, "a function from an error to text"),
    "stop_errors": (
        lambda errors: (
            isinstance(errors, Iterable) and all(isinstance(e, type) and issubclass(e, Exception) for e in errors)
        ),
        "a list of classes of errors",
    ),
}
_PART_TYPES = frozenset({"text", "image_url", "input_audio"})


class UnknownToolError(KeyError):
    """The model called an unknown tool."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no tool '{name}'; there are: {', '.join(known) or 'none'}")

    def __str__(self) -> str:
        return str(self.args[0])


class ToolMonitorRubric(Rubric):
    """Records the number of tool calls, in total and per tool."""

    def __init__(self, tool_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.tool_names: list[str] = []
        self._counts: dict[str, Callable[..., float]] = {}
        self.add_metric(self.total_tool_calls)
        for name in tool_names:
            self.add_tool_metric(name)

    def total_tool_calls(self, completion: Messages) -> float:
        return float(len(_calls(completion)))

    def add_tool_metric(self, tool_name: str) -> None:
        if tool_name in self.tool_names:
            return

        def count(completion: Messages) -> float:
            return float(sum(call["name"] == tool_name for call in _calls(completion)))

        count.__name__ = f"{tool_name}_calls"
        self.tool_names.append(tool_name)
        self._counts[tool_name] = count
        self.add_metric(count)

    def remove_tool_metric(self, tool_name: str) -> None:
        if tool_name in self.tool_names:
            self.tool_names.remove(tool_name)
            index = self.funcs.index(self._counts.pop(tool_name))
            del self.funcs[index], self.weights[index]


class ToolEnv(MultiTurnEnv):
    """The model may call Python functions; the rollout ends when it calls none."""

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]] | None = None,
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = str,
        stop_errors: Sequence[type[Exception]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Make an environment with tools.

        Args:
            tools: plain or async functions; their definitions come from signature, hints and docstring.
            max_turns: model turns after which the rollout ends.
            error_formatter: makes the text for the model from the error of a failed call.
            stop_errors: errors that end the rollout as `ToolParseError` or `ToolCallError` instead.
            kwargs: arguments of `MultiTurnEnv`.
        """
        check_values(self, locals(), _EXPECTED)
        self.tools: list[Callable[..., Any]] = []
        self.error_formatter = error_formatter
        self.stop_errors = tuple(stop_errors or ())
        self.tool_map: dict[str, Callable[..., Any]] = {}
        self.skipped_args: dict[str, list[str]] = {}
        """By tool, the arguments that a model does not see."""
        self._spread: dict[str, Signature] = {}
        tool_defs = [self._register(tool) for tool in tools or []]
        super().__init__(tool_defs=tool_defs, max_turns=max_turns, **kwargs)
        self.tool_monitor_rubric = ToolMonitorRubric(list(self.tool_map))
        self.add_rubric(self.tool_monitor_rubric)

    def add_tool(self, tool: Callable[..., Any]) -> None:
        self._offer(tool)

    def _offer(self, tool: Callable[..., Any], hidden: Sequence[str] = ()) -> None:
        """Add a tool; the model does not see its `hidden` arguments."""
        self.tool_defs = [*(self.tool_defs or []), self._register(tool, hidden)]
        self.tool_monitor_rubric.add_tool_metric(name_of(tool))

    def _register(self, tool: Callable[..., Any], hidden: Sequence[str] = ()) -> Tool:
        """Make the tool callable; returns its definition for the model."""
        name = name_of(tool)
        if name in self.tool_map:
            raise ConfigError(f"{type(self).__name__} has two tools called '{name}'; give each a name of its own.")
        tool_def = tool_from_function(tool, hidden)
        spread = spread_signature(tool)
        if spread is not None:
            self._spread[name] = spread
        self.tools.append(tool)
        self.tool_map[name] = tool
        return tool_def

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        name = name_of(tool)
        self.tools.remove(tool)
        self.tool_defs = [tool_def for tool_def in self.tool_defs or [] if tool_def["name"] != name]
        self.tool_map.pop(name)
        self._spread.pop(name, None)
        self.skipped_args.pop(name, None)
        self.tool_monitor_rubric.remove_tool_metric(name)

    @stop
    async def no_tools_called(self, state: State) -> bool:
        if not state["trajectory"]:
            return False
        last = state["trajectory"][-1]["completion"][-1]
        return last["role"] == "assistant" and not last.get("tool_calls")

    async def call_tool(
        self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any
    ) -> ToolMessage:
        """Call one tool; its answer as a message: text, or a list of text and image parts as it is."""
        tool = self.tool_map.get(tool_name)
        if tool is None:
            raise UnknownToolError(tool_name, self.tool_map)
        spread = self._spread.get(tool_name)
        result = await resolve(tool(**tool_args) if spread is None else call_spread(tool, spread, tool_args))
        return tool_message(result, tool_call_id)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        return [await self._answer(call, state, messages) for call in messages[-1].get("tool_calls") or []]

    async def _answer(self, call: ToolCall, state: State, messages: Messages) -> ToolMessage:
        try:
            definitions = state.get("tool_defs") or self.tool_defs or ()
            tool = next((tool for tool in definitions if tool["name"] == call["name"]), None)
            arguments = read_arguments(call["arguments"], tool)
        except (ValueError, RecursionError) as error:
            if isinstance(error, self.stop_errors):
                raise ToolParseError(f"call of '{call['name']}': {error}") from error
            return self._failed(error, call)
        arguments = await self._complete_arguments(call["name"], arguments, messages, state)
        try:
            return await self.call_tool(call["name"], arguments, call["id"])
        except WhetError:
            raise
        # SystemExit too: a tool that parses options raises it for wrong arguments.
        except (Exception, SystemExit) as error:
            if isinstance(error, self.stop_errors):
                raise ToolCallError(f"'{call['name']}' raised {type(error).__name__}: {error}") from error
            # The host of the tool failed, not the tool. A file that does not fit is the tool's own failure.
            if isinstance(error, InfraError) and not isinstance(error, SandboxFileError):
                raise
            return self._failed(error, call)

    def _failed(self, error: BaseException, call: ToolCall) -> ToolMessage:
        """The answer to a failed call."""
        wrapped = error if isinstance(error, Exception) else ToolCallError(f"{type(error).__name__}: {error}")
        return ToolMessage(content=self.error_formatter(wrapped), tool_call_id=call["id"])

    async def _complete_arguments(
        self, tool_name: str, arguments: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        """The arguments of a call, completed from those of the model."""
        return arguments


def _calls(completion: Messages) -> list[ToolCall]:
    return [
        call
        for message in completion or []
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or []
    ]


def read_arguments(text: str | None, tool: Tool | None = None) -> dict[str, Any]:
    """The arguments of a call, of the types in the schema of `tool`: "1" is 1 where an integer is wanted.

    None at all are an empty object, and an object that was encoded twice is one. Raises ValueError or RecursionError
    if the model wrote no JSON object, or a value of another type.
    """
    arguments = json.loads(text or "{}")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments or "{}")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments should be a JSON object, not {text:.200}")
    return arguments if tool is None else fitted_arguments(arguments, tool["parameters"])


def tool_message(result: Any, tool_call_id: str) -> ToolMessage:
    """A tool's result for the model: content parts as they are (an empty list too, as in 0.1), else its text."""
    is_content = isinstance(result, list) and all(
        isinstance(part, Mapping) and part.get("type") in _PART_TYPES for part in result
    )
    return ToolMessage(content=result if is_content else str(result), tool_call_id=tool_call_id)


class StatefulToolEnv(ToolEnv):
    """Tools with arguments that the model does not see and the environment fills in.

    Add such tools with `add_tool`. The arguments of the constructor are those of `ToolEnv`.
    """

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Add a tool; the model does not see its arguments `args_to_skip`."""
        name = name_of(tool)
        parameters = inspect.signature(tool).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if not takes_any and not is_written_for_verifiers(type(self)):  # 0.1 skips what there is
            for skipped in args_to_skip:
                if skipped not in parameters:
                    raise ConfigError(f"tool '{name}' has no argument '{skipped}'.{nearest(skipped, parameters)}")
        self._offer(tool, args_to_skip)
        self.skipped_args[name] = list(args_to_skip)

    @abstractmethod
    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """The arguments for `tool_name`, completed from those of the model; plain or async. May change `state`.

        Called for every call whose arguments are a JSON object, even of an unknown tool. An exception here ends the
        rollout as errored.
        """

    async def _complete_arguments(
        self, tool_name: str, arguments: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        hidden = self.skipped_args.get(tool_name, ())
        given = {name: value for name, value in arguments.items() if name not in hidden}
        completed: dict[str, Any] = await resolve(self.update_tool_args(tool_name, given, messages, state))
        return completed
