"""The connections of an environment: for each event loop, one per shared server, and one per rollout for the others.

A connection belongs to the event loop it was opened on and ends with it, so every loop gets its own, on first use. A
shared server that was lost is started again for the next call that needs it, after a pause that doubles with every
loss in a row, up to half a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from whet.envs.mcp.config import MCPServerConfig
from whet.envs.mcp.connection import Connection, ServerLimits, ServerStartError
from whet.errors import ConfigError, InfraError

if TYPE_CHECKING:
    from mcp.types import CallToolResult, Tool

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
CLOSE_SECONDS = 30.0

OnTools = Callable[[MCPServerConfig, "list[Tool]"], None]


class Links:
    """All connections of one environment."""

    def __init__(self, configs: Sequence[MCPServerConfig], limits: ServerLimits, on_tools: OnTools) -> None:
        self.configs = {config.name: config for config in configs}
        self.limits = limits
        self.on_tools = on_tools
        self.has_worked: set[str] = set()  # servers that were reached before: a failure is not a mistake of the user
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopLinks] = {}

    def here(self) -> LoopLinks:
        """The connections of the running loop."""
        for loop, links in list(self._by_loop.items()):
            if loop.is_closed():
                links.abandon()
                self._by_loop.pop(loop, None)
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = LoopLinks(self)
        return self._by_loop[loop]

    async def close(self) -> None:
        """End all connections, those of other loops too."""
        while self._by_loop:
            loop, links = self._by_loop.popitem()
            if loop is asyncio.get_running_loop():
                await links.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(links.close(), loop)
                with contextlib.suppress(TimeoutError):  # that loop may be blocked; `abandon` works without it
                    await asyncio.wait_for(asyncio.wrap_future(closing), CLOSE_SECONDS)
            links.abandon()

    def connection(self, config: MCPServerConfig) -> Connection:
        def on_tools(tools: list[Tool]) -> None:
            self.on_tools(config, tools)
            self.has_worked.add(config.name)

        connection = Connection(config, self.limits, on_tools)
        self.here().made.add(connection)
        return connection

    async def open(self, connection: Connection) -> None:
        """Open it. Raises `ConfigError` for a server that was never reached, and `InfraError` for one that was."""
        try:
            await connection.open()
        except (ServerStartError, ConfigError) as error:
            was_there = connection.config.name in self.has_worked
            raise (InfraError if was_there else ConfigError)(str(error)) from None


class LoopLinks:
    """The connections of one event loop."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._shared = {
            name: SharedServer(links, config) for name, config in links.configs.items() if not config.per_rollout
        }
        self._own: dict[str, dict[str, Connection]] = {}
        self.made: weakref.WeakSet[Connection] = weakref.WeakSet()
        # Many servers that start at once on few cores would all exceed their time limit.
        self._starts = asyncio.Semaphore(max(2, os.cpu_count() or 1))

    async def connect(self) -> None:
        """Reach all shared servers."""
        missing = [server for server in self._shared.values() if not server.is_open]
        if missing:
            await asyncio.gather(*(server.connection() for server in missing))

    async def open_own(self, rollout: str) -> None:
        """Start the servers of this rollout."""
        own = self._own.setdefault(rollout, {})
        for name, config in self._links.configs.items():
            if config.per_rollout:
                connection = own[name] = self._links.connection(config)
                async with self._starts:
                    await self._links.open(connection)

    async def close_own(self, rollout: str) -> None:
        own = self._own.pop(rollout, {})
        await asyncio.gather(*(connection.close() for connection in own.values()))

    async def call(self, server: str, rollout: str | None, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """The result of a call; see `Connection.call`."""
        if server in self._shared:
            return await self._shared[server].call(tool, arguments)
        connection = self._own.get(rollout or "", {}).get(server)
        if connection is None:
            raise InfraError(f"MCP server '{server}' is started per rollout, and '{tool}' was called outside of one")
        return await connection.call(tool, arguments)

    async def close(self) -> None:
        own = [connection.close() for connections in self._own.values() for connection in connections.values()]
        self._own.clear()
        await asyncio.gather(*own, *(server.close() for server in self._shared.values()))

    def abandon(self) -> None:
        for connection in list(self.made):
            connection.abandon()


class SharedServer:
    """One server for all rollouts of a loop, started again when it was lost."""

    def __init__(self, links: Links, config: MCPServerConfig) -> None:
        self.config = config
        self._links = links
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._losses = 0  # since the last call that was answered

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def connection(self) -> Connection:
        """The open connection, made on demand."""
        if self._connection is not None:
            if self._connection.is_open:
                return self._connection
            self._losses += 1
            self._connection = None
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieved)  # even if all waiting calls are cancelled
        return await asyncio.shield(self._opening)

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        connection = await self.connection()
        result = await connection.call(tool, arguments)
        self._losses = 0
        return result

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    async def _open(self) -> Connection:
        await asyncio.sleep(pause_seconds(self._losses))
        connection = self._links.connection(self.config)
        try:
            await self._links.open(connection)
        except InfraError:
            self._losses += 1
            raise
        self._connection = connection
        return connection


def _retrieved(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()


def pause_seconds(losses: int) -> float:
    """The pause before a server is started again that was lost so many times in a row."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (losses - 1)) if losses else 0.0
