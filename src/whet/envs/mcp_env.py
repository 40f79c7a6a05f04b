"""`MCPEnv`: a `ToolEnv` whose tools are those of MCP servers.

    MCPEnv(mcp_servers=[{"name": "notes", "command": sys.executable, "args": ["notes_server.py"]}], dataset=...)

The constructor starts nothing and can run on any thread. The servers are started, or reached, on the event loop that
first runs a rollout (or `connect`); their tools are known from then on. They end with that loop, at `close`, and with
this process, even after SIGKILL. Connections are in `mcp/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from whet.decorators import cleanup, setup, teardown
from whet.envs.mcp.config import MCPServerConfig, read_servers, require_mcp
from whet.envs.mcp.connection import MCPResultError, MCPToolError, ServerLimits
from whet.envs.mcp.content import content_of, tool_def_of
from whet.envs.mcp.links import Links
from whet.envs.tool_env import ToolEnv
from whet.errors import ConfigError
from whet.types import Messages, State, Tool

if TYPE_CHECKING:
    from mcp.types import Tool as ServerTool

__all__ = ["MCPEnv", "MCPResultError", "MCPServerConfig", "MCPToolError", "MCPToolWrapper"]

Call = Callable[[str, str, dict[str, Any]], Any]
_rollout: ContextVar[str | None] = ContextVar("whet_mcp_rollout", default=None)


def format_error(error: Exception) -> str:
    """The text of a failed call for the model: the tool's own message, or any other error after `Error: `."""
    return str(error) if isinstance(error, MCPResultError) else f"Error: {error}"


class MCPToolWrapper:
    """A server's tool as a function."""

    def __init__(self, server: MCPServerConfig, tool: ServerTool, call: Call) -> None:
        self.server = server
        self.server_name = server.name
        self.tool = tool
        self._call = call
        self.__name__ = server.tool_prefix + tool.name
        self.__doc__ = tool.description or ""

    async def __call__(self, /, **arguments: Any) -> Any:
        return await self._call(self.server.name, self.tool.name, arguments)

    def to_tool_def(self) -> Tool:
        """Its definition for a model."""
        return tool_def_of(self.tool, self.server.tool_prefix)


class MCPEnv(ToolEnv):
    """The model has the tools of MCP servers, over stdio or HTTP."""

    def __init__(
        self,
        mcp_servers: Sequence[MCPServerConfig | dict[str, Any]] = (),
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = format_error,
        tools: Sequence[Callable[..., Any]] | None = None,
        stop_errors: Sequence[type[Exception]] | None = None,
        timeout_per_call_seconds: float = 60.0,
        start_timeout_seconds: float = 30.0,
        max_result_chars: int = 100_000,
        **kwargs: Any,
    ) -> None:
        """Make an environment; this starts no server.

        Args:
            mcp_servers: dicts with the keys of `MCPServerConfig`, or such objects: `name` and `command`, `args`, `env`
                (stdio), or `name` and `url`, `headers` (streamable HTTP).
            max_turns: model turns after which the rollout ends.
            error_formatter: makes the text for the model from the error of a failed call.
            tools: further Python functions that the model may call, as in `ToolEnv`.
            stop_errors: errors that end the rollout as `ToolCallError` instead; `MCPToolError` is that of a server's
                tool.
            timeout_per_call_seconds: after this the model's call is answered with a time-out error if the server still
                responds; otherwise the server is ended, and the rollout fails with `InfraError`.
            start_timeout_seconds: for a server to start and list its tools.
            max_result_chars: characters of a result's text for the model.
            kwargs: arguments of `MultiTurnEnv`.

        Raises `ConfigError` for invalid servers, and `MissingExtraError` without the `mcp` package. A server
        that cannot be started or reached the first time raises `ConfigError` from the rollout, which ends the run; one
        that is lost later fails the rollouts with pending calls, with `InfraError`, and is started again.
        """
        require_mcp("MCPEnv")
        for name, value in (
            ("timeout_per_call_seconds", timeout_per_call_seconds),
            ("start_timeout_seconds", start_timeout_seconds),
            ("max_result_chars", max_result_chars),
        ):
            if not value > 0:
                raise ConfigError(f"{name} of {type(self).__name__} must be more than 0, got {value}.")
        self.mcp_servers = read_servers(mcp_servers)
        self.mcp_tools: dict[str, MCPToolWrapper] = {}
        limits = ServerLimits(start_timeout_seconds, timeout_per_call_seconds, max_result_chars)
        self._links = Links(self.mcp_servers, limits, self._adopt)
        super().__init__(
            tools=tools, max_turns=max_turns, error_formatter=error_formatter, stop_errors=stop_errors, **kwargs
        )

    async def connect(self) -> None:
        """Start or reach the servers now, on the running loop, so that `tool_defs` holds their tools.

        Rollouts do this by themselves. Servers with `per_rollout` are not started here. Override it to prepare the
        servers; it is called for every rollout.
        """
        await self._links.here().connect()

    @setup(priority=100)
    async def connect_rollout(self, state: State) -> None:
        """Connect the servers and offer their tools to the model, before any other setup."""
        await self.connect()
        await self._links.here().open_own(state["trajectory_id"])
        info = state.get("info")
        if not (isinstance(info, dict) and "tool_defs" in info):
            state["tool_defs"] = list(self.tool_defs or [])

    @cleanup
    async def end_servers_of_rollout(self, state: State) -> None:
        await self._links.here().close_own(state["trajectory_id"])

    @teardown
    async def end_servers(self) -> None:
        await self._links.close()

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        token = _rollout.set(state["trajectory_id"])
        try:
            return await super().env_response(messages, state, **kwargs)
        finally:
            _rollout.reset(token)

    async def _call_server(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
        result = await self._links.here().call(server, _rollout.get(), tool, arguments)
        return content_of(result, self._links.limits.result_chars)

    def _adopt(self, server: MCPServerConfig, tools: list[ServerTool]) -> None:
        """Replace a server's tools, for rollouts that start from now on.

        Raises `ConfigError` for a duplicate name the first time; a tool with a duplicate name that a server adds later
        is left out with a warning.
        """
        others = {name: tool for name, tool in self.tool_map.items() if getattr(tool, "server", None) is not server}
        offered: dict[str, MCPToolWrapper] = {}
        for tool in tools:
            wrapper = MCPToolWrapper(server, tool, self._call_server)
            name = wrapper.__name__
            if name in others or name in offered:
                owner = _owner(others.get(name, wrapper))
                problem = f"{owner} and MCP server '{server.name}' both have a tool '{name}'."
                if server.name not in self._links.has_worked:
                    raise ConfigError(f"{problem} Give the server a tool_prefix, for example '{server.name}_'.")
                self.logger.warning("%s The server's is left out.", problem)
                continue
            offered[name] = wrapper
        before = [tool for tool in self.mcp_tools.values() if tool.server is server]
        if [each.tool for each in before] != [each.tool for each in offered.values()]:
            self._replace(server, offered)

    def _replace(self, server: MCPServerConfig, offered: dict[str, MCPToolWrapper]) -> None:
        """Order the tools: Python functions, then those of each server in turn."""
        functions = {name: tool for name, tool in self.tool_map.items() if name not in self.mcp_tools}
        described = [tool for tool in self.tool_defs or [] if tool["name"] not in self.mcp_tools]
        everything = [*(tool for tool in self.mcp_tools.values() if tool.server is not server), *offered.values()]
        everything.sort(key=lambda tool: self.mcp_servers.index(tool.server))
        self.mcp_tools = {tool.__name__: tool for tool in everything}
        self.tools = [*functions.values(), *everything]
        self.tool_map = {**functions, **self.mcp_tools}
        self.tool_defs = [*described, *(tool.to_tool_def() for tool in everything)]
        for name in offered:
            self.tool_monitor_rubric.add_tool_metric(name)


def _owner(tool: Any) -> str:
    return f"MCP server '{tool.server.name}'" if isinstance(tool, MCPToolWrapper) else "tools"
