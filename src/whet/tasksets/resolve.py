"""The combination of a taskset and a harness (`TasksetPlan`), and the tools of a single task.

A row can configure its rollout: `toolsets` selects named toolsets or defines its own, `tools` selects tools,
`system_prompt` sets the system prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whet.calls import CallSpec, resolve
from whet.envs.mcp.config import MCPServerConfig, read_servers, require_mcp
from whet.envs.mcp.connection import ServerLimits
from whet.envs.mcp.content import content_of, tool_def_of
from whet.envs.mcp.links import Links
from whet.errors import ConfigError
from whet.tasksets.harness import Harness
from whet.tasksets.refs import resolve_ref
from whet.tasksets.signals import KINDS, Function, in_order, refuse_duplicates
from whet.tasksets.state import NOT_HERE, TaskState
from whet.tasksets.task import Task
from whet.tasksets.taskset import Taskset
from whet.tasksets.tools.calling import RolloutTools, Scopes, entries_of
from whet.tasksets.tools.toolset import HOOKS, MCPTool, Toolset, as_toolset, choose, made_toolset, toolset_maker
from whet.types import Tool

if TYPE_CHECKING:
    from mcp.types import Tool as ServerTool


class TasksetPlan:
    """A taskset and a harness combined. Raises `ConfigError` if they do not fit together."""

    def __init__(self, taskset: Taskset, harness: Harness) -> None:
        parts = (taskset, harness)
        self.taskset, self.harness = taskset, harness
        self.signals = [signal for part in parts for signal in part.signals()]
        refuse_duplicates(self.signals)
        users = [part.user for part in parts if part.user is not None]
        if len(users) > 1:
            raise ConfigError("taskset and harness both have a user; a rollout has one.")
        self.user = users[0] if users else None
        self.toolsets = [toolset for part in parts for toolset in part.toolsets]
        self.named: dict[str, Toolset] = {}
        for part in parts:
            for name, toolset in part.named_toolsets.items():
                if name in self.named:
                    raise ConfigError(f"taskset and harness both have a toolset '{name}'.")
                self.named[name] = toolset
        self.entries = entries_of(self.toolsets)
        self.mcp = mcp_tools([inner for toolset in self.toolsets for inner in toolset.flat()])
        # Of one rollout, without those of toolsets: its row decides which toolsets it has.
        self.own = {kind: _of("rollout", [part.own_functions[kind] for part in parts]) for kind in KINDS}
        self.for_groups = {kind: _of("group", [part.functions(kind) for part in parts]) for kind in KINDS}
        self.teardowns = in_order(function for part in parts for function in part.functions("teardown"))
        self.varies_groups = type(taskset).init_group is not Taskset.init_group
        owners: list[Any] = [*(inner for toolset in self.toolsets for inner in toolset.flat()), *users]
        owners += [owner.sandbox for owner in owners if owner.sandbox is not None]
        self.shares_in_groups = any(owner.scope == "group" for owner in owners)

    @property
    def shows_tools(self) -> bool:
        return self.mcp is not None or any(entry.shown for entry in self.entries.values())

    def system_prompt(self, task: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The system messages of a task: of harness, taskset and task, merged as the harness configures."""
        sources = {
            "harness": self.harness.system_prompt,
            "taskset": self.taskset.system_prompt,
            "task": list(task.get("system_prompt") or []),
        }
        merge = self.harness.system_prompt_merge
        present = [name for name, messages in sources.items() if messages]
        if merge in sources:
            return [dict(message) for message in sources[merge]]
        if merge == "reject" and len(present) > 1:
            raise ConfigError(
                f"{' and '.join(present)} bring a system prompt each. Leave one out, or set the harness's "
                "system_prompt_merge to 'concat' or to the one that counts."
            )
        return [dict(message) for name in present for message in sources[name]]


def _of(stage: str, functions: Iterable[Iterable[Function]]) -> list[Function]:
    return in_order(function for several in functions for function in several if function.stage == stage)


async def rollout_tools(plan: TasksetPlan, task: Task, state: TaskState, scopes: Scopes) -> RolloutTools:
    """The tools of a task. Raises `ConfigError` for a row that names unknown ones."""
    for name in ("sandbox", "program"):
        if task.get(name):
            raise ConfigError(f"a row has '{name}': {NOT_HERE}.")
    given: Mapping[str, Any] = task.get("toolsets") or {}
    toolsets, entries = plan.toolsets, plan.entries
    if given:
        selection = {key: given[key] for key in ("show", "hide") if given.get(key) is not None}
        chosen = choose(list(plan.named), selection, "a row's toolsets")
        left_out = {id(toolset) for name, toolset in plan.named.items() if name not in chosen}
        toolsets = [toolset for toolset in plan.toolsets if id(toolset) not in left_out]
        for name, spec in given.items():
            if name not in ("show", "hide"):
                if name in plan.named:
                    raise ConfigError(f"a row brings a toolset '{name}', which is there already.")
                toolset = await _toolset_of_row(plan, name, spec, task, state)
                for inner in toolset.flat():
                    _check_of_one_rollout(inner, f"a row's toolsets.{name}")
                    scopes.bring(inner)
                toolsets = [*toolsets, toolset]
        entries = entries_of(toolsets)
    if plan.mcp is not None:
        servers, rollout = plan.mcp, scopes.keys["rollout"]
        await servers.open(rollout)
        entries = entries_of(toolsets, lambda server: servers.tools_of(server, rollout))
    visible = [name for name, entry in entries.items() if entry.shown]
    wanted = state["runtime"].get("tools", task.get("tools"))
    return RolloutTools(entries, choose(visible, wanted, "a row's tools"), toolsets, task, state, scopes)


def _check_of_one_rollout(toolset: Toolset, where: str) -> None:
    """Raises `ConfigError` if a toolset of a row has parts that outlive its rollout."""
    if any(isinstance(tool, MCPTool) for tool in toolset.tools):
        raise ConfigError(f"{where} has an MCP server; give servers to taskset or harness.")
    hooks = [function for functions in toolset.hooks.values() for function in functions]
    of_more = [function.name for function in hooks if function.stage == "group" or function.kind == "teardown"]
    if of_more or toolset.scope == "group":
        what = f"'{of_more[0]}' is" if of_more else "its objects are"
        raise ConfigError(f"{where}: {what} of more than the rollout that brings it; give that to taskset or harness.")


def mcp_tools(toolsets: Sequence[Toolset]) -> MCPTools | None:
    """The MCP servers among these tools; None if there are none, so that MCP is not imported."""
    if not any(isinstance(tool, MCPTool) for toolset in toolsets for tool in toolset.tools):
        return None

    return MCPTools(toolsets)


async def _toolset_of_row(plan: TasksetPlan, name: str, spec: Any, task: Task, state: TaskState) -> Toolset:
    """A toolset that a row describes. It can name only objects of the taskset's package, since rows are data."""
    where, packages = f"a row's toolsets.{name}", plan.taskset.packages
    spec = resolve_ref(spec, where, packages)
    maker = toolset_maker(spec, where, packages)
    if maker is not None:
        made = await resolve(maker(**CallSpec.of(maker).select({"task": task, "state": state})))
        return made_toolset(name, made, "a row")
    if isinstance(spec, Mapping):
        if hooks := [key for key in spec if key in {f"{kind}s" for kind in HOOKS}]:
            raise ConfigError(f"{where}: '{hooks[0]}' cannot come from a row; let a function make the toolset (fn).")
        if any(isinstance(source, Mapping) for source in (spec.get("bindings") or {}).values()):
            raise ConfigError(f"{where}: a binding cannot name a function in a row; let one make the toolset (fn).")
    return as_toolset(spec, where, packages)


# The tools of MCP servers in toolsets, over the connections of `MCPEnv`; servers start with the first rollout.
#
# A server whose toolset is of one rollout (`write=True` or `scope="rollout"`) is started for each; any other is shared
# by all and lives as long as the environment.

LIMITS = ServerLimits(start_seconds=30.0, call_seconds=60.0, result_chars=100_000)


class MCPTools:
    """The servers of an environment. Making this starts none."""

    def __init__(self, toolsets: Sequence[Toolset]) -> None:
        """Raises `ConfigError` for invalid servers, and `MissingExtraError` without the `mcp` package."""
        require_mcp("An MCP server in a toolset")
        self._names: dict[int, str] = {}
        configs: list[dict[str, Any]] = []
        for toolset in toolsets:
            for server in toolset.tools:
                if isinstance(server, MCPTool):
                    if toolset.scope == "group":
                        raise ConfigError(
                            f"the MCP server '{server.command}' is of a group; let it be of all or of one."
                        )
                    name = self._names[id(server)] = f"{server.command} ({len(configs) + 1})"
                    configs.append({**vars(server), "name": name, "per_rollout": toolset.scope == "rollout"})
        self._tools: dict[str, list[ServerTool]] = {}
        self._links = Links(read_servers(configs), LIMITS, self._adopt)

    async def open(self, rollout: str) -> None:
        """Start all servers of a rollout. Raises `ConfigError` for one that cannot be started."""
        links = self._links.here()
        await links.connect()
        try:
            await links.open_own(rollout)
        except BaseException:
            await links.close_own(rollout)
            raise

    def serves(self, other: MCPTools) -> bool:
        """Whether these are the same servers as those of `other`."""
        return self._names == other._names

    def tools_of(self, server: MCPTool, rollout: str) -> list[tuple[Tool, Callable[..., Any]]]:
        """The tools of an open server: definitions, and functions that call it."""
        name = self._names[id(server)]
        return [(tool_def_of(tool), self._caller(name, tool.name, rollout)) for tool in self._tools.get(name, [])]

    async def close_own(self, rollout: str) -> None:
        """End the servers of this rollout."""
        await self._links.here().close_own(rollout)

    async def close(self) -> None:
        await self._links.close()

    def _adopt(self, server: MCPServerConfig, tools: list[ServerTool]) -> None:
        self._tools[server.name] = tools

    def _caller(self, server: str, tool: str, rollout: str) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Any:
            result = await self._links.here().call(server, rollout, tool, arguments)
            return content_of(result, LIMITS.result_chars)

        return call
