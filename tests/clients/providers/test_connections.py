"""Connections of provider clients: one for each request under way, kept while idle, never more than allowed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpcore
import httpx
import pytest

from whet.clients.providers import connections
from whet.clients.providers.connections import transport

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Server:
    """Answers every request with `ok`, once `may_answer` is set."""

    opened: int = 0
    closed: int = 0
    asked: int = 0
    hang_up: bool = False  # after each answer
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.asked += 1
                await self._tell()
                await self.may_answer.wait()
                writer.write(ANSWER)
                if self.hang_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.closed += 1
            await self._tell()

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(holds)


@asynccontextmanager
async def serving(*, answers: bool = True) -> AsyncIterator[Server]:
    server = Server()
    if answers:
        server.may_answer.set()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 20)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    try:
        yield server
    finally:
        server.may_answer.set()
        listening.close()


def client(*, most: int = 100, kept: int = 100, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport(httpx, most=most, kept=kept), **options)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await body()

    asyncio.run(limited())


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_sequential_requests_share_a_connection() -> None:
    async def body() -> None:
        async with serving(answers=False) as server, client() as asking:
            together = [asyncio.create_task(asking.get(server.url)) for _ in range(3)]
            await server.until(lambda: server.asked == 3)
            server.may_answer.set()
            assert [(await answer).text for answer in together] == ["ok"] * 3
            assert server.opened == 3
            for _ in range(4):
                await asking.get(server.url)
            assert server.opened == 3
        await server.until(lambda: server.closed == 3)

    run(body)


def test_connection_limit_and_pool_timeout() -> None:
    async def body() -> None:
        timeout = httpx.Timeout(30, pool=0.05)
        async with serving(answers=False) as server, client(most=1, timeout=timeout) as asking:
            first = asyncio.create_task(asking.get(server.url))
            await server.until(lambda: server.asked == 1)
            with pytest.raises(httpx.PoolTimeout, match=r"no connection was free within 0\.05 s"):
                await asking.get(server.url)
            server.may_answer.set()
            assert (await first).text == (await asking.get(server.url)).text == "ok"
            assert server.opened == 1

    run(body)


def test_no_more_than_asked_for_are_kept_while_idle() -> None:
    async def body() -> None:
        async with serving(answers=False) as server, client(kept=1) as asking:
            together = [asyncio.create_task(asking.get(server.url)) for _ in range(3)]
            await server.until(lambda: server.asked == 3)
            server.may_answer.set()
            await asyncio.gather(*together)
            await server.until(lambda: server.closed == 2)
            await asking.get(server.url)
            assert server.opened == 3

    run(body)


def test_none_is_kept_where_none_shall_be() -> None:
    async def body() -> None:
        async with serving() as server, client(kept=0) as asking:
            await asking.get(server.url)
            await server.until(lambda: server.closed == 1)
            await asking.get(server.url)
            assert server.opened == 2

    run(body)


def test_one_that_nobody_needed_for_a_while_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(connections, "monotonic", lambda: clock[0])

    async def body() -> None:
        async with serving(answers=False) as server, client() as asking:
            together = [asyncio.create_task(asking.get(server.url)) for _ in range(2)]
            await server.until(lambda: server.asked == 2)
            server.may_answer.set()
            await asyncio.gather(*together)
            clock[0] += connections.IDLE_S + 1
            await asking.get(server.url)
            await server.until(lambda: server.closed == 1)
            assert server.opened == 2

    run(body)


@pytest.mark.parametrize("how", ["cancelled", "left unread"])
def test_a_request_that_is_given_up_gives_its_place_back(how: str) -> None:
    async def body() -> None:
        async with serving(answers=how != "cancelled") as server, client(most=1) as asking:
            if how == "cancelled":
                given_up = asyncio.create_task(asking.get(server.url))
                await server.until(lambda: server.asked == 1)
                given_up.cancel()
                await asyncio.gather(given_up, return_exceptions=True)
                server.may_answer.set()
            else:
                async with asking.stream("GET", server.url):
                    pass
            assert (await asking.get(server.url)).text == "ok"

    run(body)


def test_one_that_the_server_has_closed_is_opened_anew() -> None:
    async def body() -> None:
        async with serving() as server, client() as asking:
            server.hang_up = True
            await asking.get(server.url)
            await server.until(lambda: server.closed == 1)
            await asyncio.sleep(0.01)  # for the word of it to arrive
            assert (await asking.get(server.url)).text == "ok"
            assert server.opened == 2

    run(body)


def pieces_of(content: bytes | AsyncIterator[bytes], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is written to the wire, write by write, where this is posted."""
    connect, pieces = httpcore.AnyIOBackend.connect_tcp, []

    async def listened_to(backend: Any, *given: Any, **named: Any) -> Any:
        stream: Any = await connect(backend, *given, **named)
        write = stream.write

        async def listen(buffer: bytes, timeout: float | None = None) -> None:
            pieces.append(bytes(buffer))
            await write(buffer, timeout)

        stream.write = listen
        return stream

    async def body() -> None:
        async with serving() as server, client() as asking:
            assert (await asking.post(server.url, content=content)).text == "ok"

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", listened_to)
    run(body)
    return pieces


def test_a_request_is_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    (piece,) = pieces_of(b"the body", monkeypatch)
    assert piece.startswith(b"POST / HTTP/1.1\r\n")
    assert piece.endswith(b"\r\n\r\nthe body")


def test_a_long_one_that_comes_bit_by_bit_is_written_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    bit = b"\0" * 10_000

    async def long() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bit

    pieces = pieces_of(long(), monkeypatch)
    assert b"".join(pieces).count(b"\0") == 40 * len(bit)
    assert max(map(len, pieces)) < connections.WRITTEN_AT_ONCE + len(bit) + 100
    assert len(pieces) < 10


def test_a_client_goes_on_in_another_event_loop() -> None:
    asking = client(most=1)

    async def body() -> None:
        async with serving() as server:
            assert (await asking.get(server.url)).text == "ok"

    run(body)
    run(body)


def test_a_server_that_is_not_there_is_the_librarys_error_and_keeps_no_place() -> None:
    async def body() -> None:
        async with serving() as server, client(most=1) as asking:
            for _ in range(2):
                with pytest.raises(httpx.ConnectError):
                    await asking.get("http://127.0.0.1:9/")
            assert (await asking.get(server.url)).text == "ok"

    run(body)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_where_a_proxy_is_named_the_library_chooses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert transport(httpx, most=1, kept=1) is not None
    monkeypatch.setenv(name, "http://127.0.0.1:3128")
    assert transport(httpx, most=1, kept=1) is None
