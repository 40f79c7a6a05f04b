"""Transports of an MCP client: the pipes of a process that whet started, or streamable HTTP.

Both are transports as the `mcp` package defines them: async context managers that yield a stream of messages from
the server and one to it. The `stdio_client` of that package is not used: it has no limit for the size of a message,
does not give access to the process (its exit status, the end of its stderr), and a server outlives a killed whet.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from whet.envs.mcp.config import MCPServerConfig
from whet.envs.mcp.process import MAX_MESSAGE_BYTES, ServerProcess

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

LISTEN_POLL_SECONDS = 0.05


@contextlib.asynccontextmanager
async def over_stdio(process: ServerProcess, on_noise: Callable[[bytes], None]) -> AsyncIterator[TransportStreams]:
    """Messages over stdin and stdout, one per line. A line that is no message goes to `on_noise`."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError)

    async def receive() -> None:
        async with to_client:
            async for line in process.lines():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    on_noise(line)
                    continue
                with contextlib.suppress(*gone):
                    await to_client.send(SessionMessage(message))

    async def send() -> None:
        async with from_client:
            async for item in from_client:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()
                except gone:
                    await to_client.aclose()  # pending requests end: there will be no answer
                    return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        try:
            yield from_server, to_server
        finally:
            from_server.close()
            to_server.close()
            tasks.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def over_http(
    config: MCPServerConfig, url: str, on_response: Callable[[str, int], None]
) -> AsyncIterator[TransportStreams]:
    """Streamable HTTP. Method and status of every response go to `on_response`; errors of the protocol lack them."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def seen(response: Any) -> None:
        on_response(response.request.method, response.status_code)

    client = httpx2.AsyncClient(
        headers=config.headers,
        timeout=httpx2.Timeout(30.0, read=None),  # each call has its own limit
        trust_env=not config.is_on_loopback,  # no proxy between this machine and itself
        event_hooks={"response": [seen]},
    )
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


async def until_it_listens(url: str) -> None:
    """Return once something accepts connections at `url`."""
    where = urlsplit(url)
    while True:
        try:
            _, writer = await asyncio.open_connection(where.hostname, where.port or 80)
        except OSError:
            await asyncio.sleep(LISTEN_POLL_SECONDS)
        else:
            writer.close()
            return


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port that is not in use, for a server that starts in this block.

    The UDP port of the same number is bound meanwhile: no other server that whet starts is given this port.
    """
    while True:
        with socket.socket() as listener, socket.socket(type=socket.SOCK_DGRAM) as held:
            listener.bind(("127.0.0.1", 0))
            try:
                held.bind(listener.getsockname())
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            listener.close()
            yield held.getsockname()[1]
            return
