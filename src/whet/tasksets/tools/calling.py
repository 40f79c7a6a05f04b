"""The tools of one rollout: their definitions for the model, and how they are called.

The error of a failing call is the tool's answer, for the model to handle.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.calls import CallSpec, resolve
from whet.envs.tool_env import UnknownToolError, read_arguments, tool_message
from whet.envs.tool_schemas import tool_from_function
from whet.errors import ConfigError, InfraError, SandboxFileError, WhetError
from whet.tasksets.task import Task
from whet.tasksets.tools.bindings import RESERVED, Objects, at_path, bound_arguments, value_of
from whet.tasksets.tools.toolset import MCPTool, Toolset, tool_name
from whet.types import State, Tool, ToolCall, ToolMessage

Offered = Sequence[tuple[Tool, Callable[..., Any]]]
"""Tools with the functions that call them."""


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """One tool. `bound` maps arguments to the sources of their values; `framework` lists task, state and sandbox."""

    function: Callable[..., Any]
    owner: Toolset | None
    definition: Tool
    bound: Mapping[str, Any]
    framework: tuple[str, ...]
    shown: bool

    @property
    def name(self) -> str:
        name: str = self.definition["name"]
        return name

    @property
    def hidden(self) -> frozenset[str]:
        return frozenset((*self.bound, *self.framework))


def entries_of(toolsets: Iterable[Toolset], mcp: Callable[[MCPTool], Offered] | None = None) -> dict[str, ToolEntry]:
    """The tools of toolsets, by name. Raises `ConfigError` for a duplicate name.

    `mcp` gives the tools of an MCP server; without it (before a rollout starts) these are left out.
    """
    entries: dict[str, ToolEntry] = {}
    for toolset in toolsets:
        for entry in _entries(toolset, lambda name: True, mcp):
            if entry.name in entries:
                raise ConfigError(f"there are two tools '{entry.name}'; tools of a rollout need names of their own.")
            entries[entry.name] = entry
    return entries


def _entries(
    toolset: Toolset, shown_above: Callable[[str], bool], mcp: Callable[[MCPTool], Offered] | None
) -> list[ToolEntry]:
    def shown(name: str) -> bool:
        visible = (toolset.show is None or name in toolset.show) and (toolset.hide is None or name not in toolset.hide)
        return visible and shown_above(name)

    entries: list[ToolEntry] = []
    for tool in toolset.tools:
        if isinstance(tool, Toolset):
            entries += _entries(tool, shown, mcp)
        elif isinstance(tool, MCPTool):
            offered = [] if mcp is None else mcp(tool)
            entries += [ToolEntry(call, toolset, tool, {}, (), shown(tool["name"])) for tool, call in offered]
        else:
            entries.append(_entry(tool, toolset, shown(tool_name(tool))))
    return entries


def _entry(tool: Callable[..., Any], toolset: Toolset, shown: bool) -> ToolEntry:
    name = tool_name(tool)
    spec = CallSpec.of(tool)
    bound = bound_arguments(toolset.bindings, name)
    framework = tuple(argument for argument in RESERVED if argument in spec.names)
    if toolset.sandbox is not None and "sandbox" in spec.names:
        framework = (*framework, "sandbox")
    definition = getattr(tool, "tool_def", None)
    if not isinstance(definition, Tool):
        described = tool_from_function(tool, hidden=(*framework, *bound))
        definition = described.model_copy(update={"name": name})
    return ToolEntry(tool, toolset, definition, bound, framework, shown)


@dataclass(frozen=True, slots=True)
class RolloutTools:
    """The tools of one rollout; `shown` lists those that its model sees."""

    entries: Mapping[str, ToolEntry]
    shown: Sequence[str]
    toolsets: Sequence[Toolset]
    task: Task
    state: State
    scopes: Scopes

    @property
    def definitions(self) -> list[Tool]:
        return [self.entries[name].definition for name in self.shown]

    async def answer(self, call: ToolCall) -> ToolMessage:
        """The answer to a call by the model: the result, or the error as text."""
        try:
            definition = self.entries[call["name"]].definition if call["name"] in self.shown else None
            result = await self.call(call["name"], read_arguments(call["arguments"], definition))
        except SandboxFileError as error:
            result = str(error)
        except (WhetError, InfraError):  # the host of the tool failed, not the tool
            raise
        # SystemExit too: a tool that parses options raises it for wrong arguments.
        except (Exception, SystemExit) as error:
            result = str(error) if isinstance(error, Exception) else f"SystemExit: {error}"
        return tool_message(result, call["id"])

    async def call(self, name: str, arguments: Mapping[str, Any], *, also_hidden: bool = False) -> Any:
        """Call a tool with the model's arguments; values for hidden arguments are dropped."""
        known = self.entries if also_hidden else self.shown
        if name not in known:
            raise UnknownToolError(name, known)
        entry = self.entries[name]
        given = {key: value for key, value in arguments.items() if key not in entry.hidden}
        offered = {"task": self.task, "state": self.state}
        if "sandbox" in entry.framework and entry.owner is not None:
            offered["sandbox"] = await self.scopes.object_of(entry.owner.sandbox, "sandbox")
        given.update({key: offered[key] for key in entry.framework})
        given.update(await self.bound(entry.owner, entry.bound))
        return await resolve(entry.function(**given))

    async def bound(self, owner: Any, sources: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The values of bound arguments, which may use the objects of `owner`; functions are offered `more` too."""
        if not sources:
            return {}

        async def look_up(root: str, rest: str) -> Any:
            if root == "tools":
                name, _, below = rest.partition(".")
                return at_path(self._function(name) if name else self.functions(), below)
            if root == "objects":
                name, _, below = rest.partition(".")
                return at_path(await self.scopes.object_of(owner, name), below)
            start = {"task": self.task, "state": self.state, "runtime": self.state.get("runtime", {})}
            return at_path(start[root], rest)

        offered = {"task": self.task, "state": self.state, **more}
        return {name: await value_of(source, look_up, offered) for name, source in sources.items()}

    def functions(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """The shown tools as async functions of the arguments that a model would give."""
        return {name: self._function(name) for name in self.shown}

    def _function(self, name: str) -> Callable[..., Awaitable[Any]]:
        entry = self.entries[name]

        async def call(**arguments: Any) -> Any:
            return await self.call(name, arguments, also_hidden=True)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = entry.definition["description"]
        parameters = inspect.signature(entry.function).parameters.values()
        visible = [parameter for parameter in parameters if parameter.name not in entry.hidden]
        vars(call)["__signature__"] = inspect.Signature(visible)
        return call


class Scopes:
    """The scopes of one rollout: the keys under which its objects are kept."""

    def __init__(self, objects: Objects, rollout: str, group: str | None) -> None:
        self.objects = objects
        self.keys = {"rollout": f"rollout {rollout}", "group": f"group {group}" if group else f"rollout {rollout}"}
        self._brought: list[Any] = []

    def bring(self, toolset: Toolset) -> None:
        """Objects of a toolset from the row end with the rollout, whatever its scope: no other rollout has it."""
        self._brought += [toolset, toolset.sandbox]

    async def object_of(self, owner: Any, name: str) -> Any:
        brought = any(owner is one for one in self._brought)
        key = self.keys["rollout"] if brought else self.keys.get(owner.scope, "global")
        return await self.objects.get(key, owner, name)
