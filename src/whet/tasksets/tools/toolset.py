"""`Toolset`: tools that belong together, which of them the model sees, and what they need that it does not see.

A toolset is a description; `calling.py` makes the tools of a rollout from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from whet.calls import CallSpec, name_of
from whet.envs.config.arguments import nearest
from whet.errors import ConfigError
from whet.tasksets.config import MCPToolConfig, ToolsetConfig, given_fields
from whet.tasksets.refs import listed, resolve_function, resolve_ref
from whet.tasksets.signals import Function, Kind, read_functions
from whet.tasksets.tools.bindings import check_bindings
from whet.tasksets.tools.sandboxes import read_sandbox

HOOKS: tuple[Kind, ...] = ("stop", "setup", "update", "cleanup", "teardown")


@dataclass(frozen=True)
class MCPTool:
    """An MCP server that is started as a process: all its tools."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))


class Toolset:
    """Tools, and what they need.

    Args:
        tools: functions, other toolsets, `MCPTool`s, `"module:function"` strings. A function that names `task` or
            `state` among its parameters is given them; the model does not see these.
        show: names of the tools that the model is shown; without it, all.
        hide: names of the tools that it is not shown.
        bindings: `"tool.argument"` to where the value comes from: `"task.x"`, `"state.x"`, `"objects.x"`, `"tools.x"`,
            a function of task and state, or a value. The model does not see such an argument.
        objects: objects that bindings name, or functions without arguments that make them, called once in `scope`.
        write: objects belong to one rollout ("rollout") rather than to all ("global").
        scope: "rollout", "group" or "global", where `write` does not say it.
        sandbox: fields of a `SandboxConfig`: a tool that names `sandbox` is given one, made once in its own scope.
        stops, setups, updates, cleanups, teardowns: as in a taskset.
        config: the same as a mapping or `ToolsetConfig`.

    An object is closed (`aclose`, `close` or `teardown`) at the end of its scope.
    """

    def __init__(
        self,
        tools: Any = None,
        show: Any = None,
        hide: Any = None,
        bindings: Mapping[str, Any] | None = None,
        objects: Mapping[str, Any] | None = None,
        write: bool | None = None,
        scope: str | None = None,
        sandbox: Any = None,
        stops: Any = None,
        setups: Any = None,
        updates: Any = None,
        cleanups: Any = None,
        teardowns: Any = None,
        config: Any = None,
        *,
        packages: Collection[str] | None = None,
    ) -> None:
        given = locals()
        self.config = ToolsetConfig.from_config(config)
        self.tools = [_tool(tool, packages) for tool in (*listed(tools), *listed(self.config.tools))]
        self.show = _names(show if show is not None else self.config.show, "show")
        self.hide = _names(hide if hide is not None else self.config.hide, "hide")
        if self.show is not None and self.hide is not None:
            raise ConfigError("a toolset takes show or hide, not both.")
        self.bindings = {**self.config.bindings, **(bindings or {})}
        self.objects = {
            name: resolve_ref(value, f"toolset objects.{name}", packages)
            for name, value in {**self.config.objects, **(objects or {})}.items()
        }
        self.write = self.config.write if write is None else write
        scope = scope or self.config.scope
        if scope not in (None, "rollout", "group", "global"):
            raise ConfigError(f"a toolset's scope is {scope!r}; it should be rollout, group or global.")
        self.scope = scope or ("rollout" if self.write else "global")
        self.sandbox = read_sandbox(self.config.sandbox if sandbox is None else sandbox, "a toolset's sandbox")
        self.hooks = read_functions(self, HOOKS, given, self.config, "toolset", self)
        check_bindings(self.bindings, self.objects, self._targets())

    def flat(self) -> list[Toolset]:
        """This toolset and those inside it."""
        return [self, *(inner for tool in self.tools if isinstance(tool, Toolset) for inner in tool.flat())]

    def functions(self, kind: Kind) -> list[Function]:
        return [function for toolset in self.flat() for function in toolset.hooks[kind]]

    def _targets(self) -> dict[str, CallSpec]:
        """The tools and functions of this toolset, by name; bindings can set their arguments."""
        specs = {tool_name(tool): CallSpec.of(tool) for tool in self.tools if not isinstance(tool, Toolset | MCPTool)}
        specs.update({function.name: function.spec for kind in HOOKS for function in self.hooks[kind]})
        return specs


def tool_name(tool: Any) -> str:
    """The name of a tool for the model: that of the function, or the `name` of an object."""
    name = getattr(tool, "__name__", None) or getattr(tool, "name", None) or name_of(tool)
    return str(name)


def read_toolsets(value: Any, where: str) -> tuple[list[Toolset], dict[str, Toolset]]:
    """Toolsets from a list or a table; those of a table have names, by which rows may choose among them."""
    if isinstance(value, Mapping):
        named = {str(name): named_toolset(str(name), item, where) for name, item in value.items()}
        return list(named.values()), named
    return [as_toolset(entry, where) for entry in listed(value)], {}


def named_toolset(name: str, value: Any, where: str) -> Toolset:
    """One entry of a table: a toolset, its fields, or a function (`{fn = ...}` with its arguments) that makes it."""
    value = resolve_ref(value, f"{where}.toolsets.{name}")
    maker = toolset_maker(value, f"{where}.toolsets.{name}")
    return as_toolset(value, where) if maker is None else made_toolset(name, maker(), where)


def toolset_maker(value: Any, where: str, packages: Collection[str] | None = None) -> Callable[..., Any] | None:
    """The function that an entry of a table names to make its toolset, with the arguments that it gives for it."""
    if isinstance(value, Mapping) and "fn" in value:
        arguments = {key: item for key, item in value.items() if key != "fn"}
        return partial(resolve_function(value["fn"], where, packages), **arguments)
    return value if callable(value) and not isinstance(value, Toolset) else None


def made_toolset(name: str, made: Any, where: str) -> Toolset:
    """The toolset that a function returned. Raises `ConfigError` if it returned anything else."""
    entries = listed(made)
    if hasattr(made, "__await__") or len(entries) != 1:
        raise ConfigError(
            f"{where}.toolsets.{name}: its function returned {type(made).__name__}; it should return a Toolset."
        )
    return as_toolset(entries[0], where)


def as_toolset(value: Any, where: str, packages: Collection[str] | None = None) -> Toolset:
    value = resolve_ref(value, f"{where}.toolsets", packages)
    if isinstance(value, Toolset):
        return value
    if isinstance(value, Mapping | ToolsetConfig):
        return Toolset(config=value, packages=packages)
    return Toolset(tools=[value])


def _tool(value: Any, packages: Collection[str] | None) -> Any:
    value = resolve_ref(value, "toolset tools", packages)
    if isinstance(value, MCPToolConfig | Mapping):
        if isinstance(value, Mapping) and "command" not in value:
            raise ConfigError(
                f"toolset tools: a table describes an MCP server, and this has no command: {dict(value)!r}."
            )
        return MCPTool(**MCPToolConfig.from_config(given_fields(value, "toolset tools")).model_dump())
    if isinstance(value, Toolset | MCPTool):
        return value
    return resolve_function(value, "toolset tools")


def _names(value: Any, field: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"a toolset's {field} should be names of tools, not {value!r}.")
    return names


def choose(names: Collection[str], selection: Any, where: str) -> list[str]:
    """Those of `names` that `{show = [...]}` or `{hide = [...]}` leaves, in their order, or in that of `show`."""
    if selection is None:
        return list(names)
    if not isinstance(selection, Mapping):
        raise ConfigError(f"{where} is {type(selection).__name__}; it should be {{show = [...]}} or {{hide = [...]}}.")
    unknown = set(selection) - {"show", "hide"}
    if unknown:
        raise ConfigError(f"{where}: unknown key '{sorted(unknown)[0]}'. It takes show or hide.")
    show, hide = _names(selection.get("show"), "show"), _names(selection.get("hide"), "hide")
    if show is not None and hide is not None:
        raise ConfigError(f"{where} takes show or hide, not both.")
    for name in (*(show or ()), *(hide or ())):
        if name not in names:
            raise ConfigError(f"{where}: there is no '{name}'.{nearest(name, names)}")
    if show is not None:
        return list(show)
    return [name for name in names if name not in (hide or ())]
