"""The relay in front of a real HTTP server on a Unix socket, spoken to as the run does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.inference.vllm.http_connection import HttpPool
from whet.rl.cluster.node_engine import KeyedRelay

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


class Server:
    """Answers every request but those of `/wait`, and notes when a connection has ended."""

    def __init__(self) -> None:
        self.requests = 0
        self.ended = asyncio.Event()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                if head.startswith(b"POST /wait"):
                    await reader.read()
                    break
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            pass
        finally:
            self.ended.set()
            writer.close()


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def relay(socket: Path) -> Iterator[KeyedRelay]:
    made = KeyedRelay(socket, "127.0.0.1", "right")
    yield made
    made.close()


def pool(relay: KeyedRelay, key: str) -> HttpPool:
    return HttpPool(("127.0.0.1", relay.port), {"authorization": f"Bearer {key}"})


async def serving(socket: Path) -> tuple[Server, asyncio.Server]:
    server = Server()
    return server, await asyncio.start_unix_server(server.connected, str(socket))


def test_requests_with_the_key_are_answered_on_one_connection(relay: KeyedRelay, socket: Path) -> None:
    async def go() -> None:
        server, listening = await serving(socket)
        async with listening:
            requests = pool(relay, "right")
            assert [(await requests.request("POST", "/a")).body for _ in range(3)] == [b"hello"] * 3
            assert server.requests == 3
            requests.close()
            await server.ended.wait()

    asyncio.run(go())


@pytest.mark.parametrize("key", ["wrong", "", "rightx"])
def test_without_the_key_nothing_reaches_the_server(relay: KeyedRelay, socket: Path, key: str) -> None:
    async def go() -> None:
        server, listening = await serving(socket)
        async with listening:
            answer = await pool(relay, key).request("POST", "/a")
            assert (answer.status, server.requests) == (401, 0)

    asyncio.run(go())


def test_two_keys_in_one_request_are_refused(relay: KeyedRelay, socket: Path) -> None:
    async def go() -> None:
        server, listening = await serving(socket)
        async with listening:
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"POST / HTTP/1.1\r\nauthorization: Bearer right\r\nAuthorization: Bearer x\r\n\r\n")
            assert b" 401 " in await reader.readline()
            writer.close()
            assert server.requests == 0

    asyncio.run(go())


def test_a_request_that_is_given_up_is_given_up_at_the_server(relay: KeyedRelay, socket: Path) -> None:
    async def go() -> None:
        server, listening = await serving(socket)
        async with listening:
            asking = asyncio.create_task(pool(relay, "right").request("POST", "/wait"))
            while not server.requests:
                await asyncio.sleep(0)
            asking.cancel()
            await server.ended.wait()

    asyncio.run(go())


def test_a_server_that_is_gone_breaks_the_connection_off(relay: KeyedRelay) -> None:
    with pytest.raises(ConnectionError):
        asyncio.run(pool(relay, "right").request("POST", "/a"))
