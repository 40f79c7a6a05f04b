"""The tools of MCP servers in toolsets, over the connections of `MCPEnv`; servers start with the first rollout.

A server whose toolset is of one rollout (`write=True` or `scope="rollout"`) is started for each; any other is shared by
all and lives as long as the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from whet.envs.mcp.config import MCPServerConfig, read_servers, require_mcp
from whet.envs.mcp.connection import ServerLimits
from whet.envs.mcp.content import content_of, tool_def_of
from whet.envs.mcp.links import Links
from whet.errors import ConfigError
from whet.tasksets.tools.toolset import MCPTool, Toolset
from whet.types import Tool

if TYPE_CHECKING:
    from mcp.types import Tool as ServerTool

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
