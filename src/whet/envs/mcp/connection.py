"""`Connection`: one conversation with one MCP server, from its start to its end, on the event loop it was opened on.

    open -> call, call, ... -> close
               \\-> over: the server died, hung or went away

One task owns the process and the session, so that a server's end is noticed at once and pending
calls fail. A connection that is over stays over; `links.py` starts the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whet.envs.mcp.config import PORT, MCPServerConfig
from whet.envs.mcp.content import text_of
from whet.envs.mcp.process import ServerProcess
from whet.envs.mcp.transport import free_port, over_http, over_stdio, until_it_listens
from whet.errors import ConfigError, InfraError

if TYPE_CHECKING:
    from mcp import Client, MCPError
    from mcp.types import CallToolResult, Tool

logger = logging.getLogger(__name__)

PROBE_SECONDS = 5.0  # for a server to show, after a call took too long, that it is still there
CLOSE_SECONDS = 10.0
MAX_TOOL_PAGES = 100
NOISE_CHARS = 200


class MCPToolError(Exception):
    """A call of an MCP server's tool failed: it answered with an error, was refused, or took too long."""


class MCPResultError(MCPToolError):
    """The tool answered, and said itself that this is an error."""


class ServerStartError(Exception):
    """A server could not be started or reached; the message says why, and what to do."""


@dataclass(frozen=True)
class ServerLimits:
    start_seconds: float
    call_seconds: float
    result_chars: int


class Connection:
    def __init__(self, config: MCPServerConfig, limits: ServerLimits, on_tools: Callable[[list[Tool]], None]) -> None:
        """`on_tools` is called with the server's tools once it is open, and again whenever they change."""
        self.config = config
        self.limits = limits
        self._on_tools = on_tools
        self.url = config.url  # with the port, once there is one
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._owner: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._stop = asyncio.Event()  # the connection should end, or has ended
        self._explained = asyncio.Event()  # `_why` is known
        self._changed = asyncio.Event()  # its tools have changed
        self._noise = ""  # the first line of stdout that was no message
        self._status = 0  # of the last HTTP response
        self._why = ""

    @property
    def is_open(self) -> bool:
        return self._client is not None and not self._stop.is_set()

    async def open(self) -> None:
        """Start the server, or reach it, and list its tools. Raises `ServerStartError` or `ConfigError`."""
        self._opened = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._live(self._opened), name=f"whet-mcp-{self.config.name}")
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            await self.close()
            raise

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """The result of one call.

        Raises `MCPToolError` for errors that the model can handle, and `InfraError` if the server is lost.
        """
        from mcp import MCPError

        client = self._client
        if client is None or self._stop.is_set():
            raise self._gone(tool, self._why)
        seconds = self.limits.call_seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                result = await client.call_tool(tool, arguments)
        except TimeoutError:
            if not deadline.expired():
                raise
            if await self._answers(client):
                raise MCPToolError(f"'{tool}' took longer than {seconds:g} seconds and was given up") from None
            self._end(f"it no longer answers (nothing in {seconds:g} seconds, and nothing to a simpler question)")
            raise self._gone(tool, self._why) from None
        except MCPError as error:
            if not self._is_lost(error):
                raise MCPToolError(str(error)[: self.limits.result_chars]) from error
            raise self._gone(tool, await self._find_out(client, str(error))) from error
        except _closed_streams() as error:
            raise self._gone(tool, await self._find_out(client, type(error).__name__)) from error
        if result.is_error:
            raise MCPResultError(text_of(result, self.limits.result_chars))
        return result

    async def close(self) -> None:
        """End the connection and, if whet started it, the server; takes at most a few seconds."""
        self._end("it was closed")
        if self._owner is not None:
            _, late = await asyncio.wait([self._owner], timeout=2 * CLOSE_SECONDS)
            for owner in late:
                owner.cancel()

    def abandon(self) -> None:
        """End the server from any thread, without the event loop of this connection, which may be closed."""
        if self._process is not None:
            self._process.abandon()

    def _end(self, why: str) -> None:
        """End the connection. The first reason that is not empty is kept."""
        self._why = self._why or why
        self._stop.set()

    async def _find_out(self, client: Client, symptom: str) -> str:
        """The reason for a broken call. Ends the connection if the server is lost, and waits for the reason."""
        if not self._stop.is_set() and not await self._answers(client):
            self._end("")
        if self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._explained.wait(), CLOSE_SECONDS)
        return self._why or f"the connection broke ({symptom})"

    def _gone(self, tool: str, why: str) -> InfraError:
        return InfraError(self._explain(f"was lost during '{tool}': {why or 'the connection broke'}"))

    def _is_lost(self, error: MCPError) -> bool:
        """Whether this is an error of the connection and not of the tool."""
        from mcp.types import CONNECTION_CLOSED

        # The message of the client library for an HTTP status without a message of the protocol.
        by_status = self.url is not None and error.message == "Server returned an error response"
        return self._stop.is_set() or error.code == CONNECTION_CLOSED or by_status

    async def _answers(self, client: Client) -> bool:
        from mcp import MCPError

        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await client.list_tools()
        except MCPError as error:
            return not self._is_lost(error)
        except TimeoutError:
            return False
        except _closed_streams():
            return False
        return True

    def _explain(self, what: str) -> str:
        """`what` as a sentence about this server, with the end of its output."""
        text = f"MCP server '{self.config.name}' ({self.config.shown}) {what}."
        if self._noise:
            text += f" It printed to stdout, which is for MCP messages alone: {self._noise}"
        if self._process is not None and (log := str(self._process.log)):
            text += f" Its log ends with: {log}" if self.config.url is not None else f" Its stderr ends with: {log}"
        return self.config.without_secrets(text)

    # The task that owns process and session

    async def _live(self, opened: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.limits.start_seconds) as deadline, contextlib.AsyncExitStack() as stack:
                client = await self._connect(stack)
                await self._list_tools(client)
                deadline.reschedule(None)
                self._client = client
                opened.set_result(None)
                try:
                    await self._until_over(client)
                finally:
                    deadline.reschedule(loop.time() + CLOSE_SECONDS)
        except ConfigError as error:
            opened.set_exception(error)
        except asyncio.CancelledError:
            self._end("its event loop ended")
            raise
        except Exception as error:
            self._end(await self._reason(error))
        finally:
            self._end("")
            if self._process is not None and not self._why:
                self._why = await self._process.how_it_ended()
            self._explained.set()
            if self._process is not None:
                await self._process.end()
            if not opened.done():
                what = "could not be reached" if self._process is None else "did not start"
                opened.set_exception(ServerStartError(self._explain(f"{what}: {self._why}")))
                opened.exception()  # retrieved: there may be no waiting call

    async def _connect(self, stack: contextlib.AsyncExitStack) -> Client:
        if "mcp" not in sys.modules:  # takes half a second, which would block all rollouts
            await asyncio.to_thread(importlib.import_module, "mcp")
        from mcp import Client

        config = self.config
        if config.command is not None:
            own_port = config.url is not None and PORT in config.url
            with free_port() if own_port else contextlib.nullcontext() as port:
                if config.url is not None:
                    self.url = config.url.replace(PORT, str(port))
                self._process = await ServerProcess.start(
                    config.argv(port), config.environment(), config.cwd, stdout_is_log=self.url is not None
                )
                if self.url is not None:
                    await _first(until_it_listens(self.url), self._process.wait())
        if self.url is None:
            assert self._process is not None
            transport = over_stdio(self._process, self._heard_noise)
        else:
            transport = over_http(config, self.url, self._saw_response)
        return await stack.enter_async_context(Client(transport, message_handler=self._heard, cache=None))

    async def _list_tools(self, client: Client) -> None:
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(MAX_TOOL_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        self._on_tools(tools)

    async def _until_over(self, client: Client) -> None:
        """Wait for the end; until then, list the tools again whenever the server reports that they changed."""
        watchers = [asyncio.create_task(self._follow_tools(client)), asyncio.create_task(self._subscribe(client))]
        try:
            if self._process is None:
                await self._stop.wait()
            else:
                await _first(self._stop.wait(), self._process.wait())
        finally:
            await _cancel(watchers)

    async def _follow_tools(self, client: Client) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._list_tools(client)
            except Exception as error:  # of any kind, caused by the server; its former tools stay
                if not self._stop.is_set():
                    logger.warning(
                        "MCP server '%s' changed its tools and does not list them: %s", self.config.name, error
                    )

    async def _subscribe(self, client: Client) -> None:
        """Subscribe to changes of tools, as the protocol of 2026 requires; older servers need no subscription."""
        from mcp import MCPError
        from mcp.client.subscriptions import SubscriptionLost
        from mcp.types.version import MODERN_PROTOCOL_VERSIONS

        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._changed.set()
                return
            except SubscriptionLost:
                await asyncio.sleep(1.0)
                self._changed.set()
            except MCPError as error:
                logger.debug("MCP server '%s' takes no subscriptions: %s", self.config.name, error)
                return

    async def _heard(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    def _heard_noise(self, line: bytes) -> None:
        if not self._noise:
            self._noise = self.config.without_secrets(line.decode(errors="replace").strip()[:NOISE_CHARS])
            logger.warning(
                "MCP server '%s' prints to stdout what is no MCP message; that is ignored, and should go to stderr: %s",
                self.config.name,
                self._noise,
            )

    def _saw_response(self, method: str, status: int) -> None:
        from mcp.types.version import MODERN_PROTOCOL_VERSIONS

        self._status = status
        # In the protocol of 2025 this is the only sign that the server no longer knows the session.
        has_session = self._client is not None and self._client.protocol_version not in MODERN_PROTOCOL_VERSIONS
        if has_session and method == "POST" and status == 404:
            self._end("it no longer knows this session (HTTP 404), as after a restart")

    async def _reason(self, error: Exception) -> str:
        """The cause of an error, and advice."""
        import httpx2
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        url = self.config.url
        match error:
            case TimeoutError():
                protocol = "stdio" if self.url is None else "streamable HTTP"
                return (
                    f"it did not answer within {self.limits.start_seconds:g} seconds. Does it speak MCP over "
                    f"{protocol}? If it is slow to start, give start_timeout_seconds"
                )
            case _ServerEnded():
                return ""
            case MCPError() if error.code == CONNECTION_CLOSED and self._process is not None:
                return ""
            case MCPError() if url is not None and self._status == 404:
                return "HTTP 404; is the path right? Most servers answer at /mcp"
            case MCPError() if url is not None and self._status in (401, 403):
                return f"HTTP {self._status}; give what it asks for in headers"
            case MCPError() if url is not None and self._status >= 400:
                return f"HTTP {self._status} ({error})"
            case httpx2.TransportError() if self._process is not None:
                return ""
            case httpx2.ConnectError():
                return "nothing answers there; start the server, or correct its url"
            case MCPError() | InfraError() | OSError() | httpx2.HTTPError():
                return str(error) or type(error).__name__
        return f"{type(error).__name__}: {error}"


class _ServerEnded(Exception):
    """The process ended too early."""


async def _first(wanted: Coroutine[Any, Any, Any], end: Coroutine[Any, Any, Any]) -> None:
    """Wait for `wanted`. Raises `_ServerEnded` where `end` comes first."""
    tasks = [asyncio.create_task(wanted), asyncio.create_task(end)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise _ServerEnded
        tasks[0].result()
    finally:
        await _cancel(tasks)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _closed_streams() -> tuple[type[Exception], ...]:
    import anyio

    return (anyio.ClosedResourceError, anyio.BrokenResourceError)
