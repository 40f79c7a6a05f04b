"""Connections that are used again: the server may have closed them meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from whet.inference.vllm.http_connection import EngineHttpResponse, HttpPool

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers with what `answers` has, a connection for each; then closes it."""

    def __init__(self, *answers: bytes) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        self.requests: list[bytes] = []
        self.closed = [threading.Event() for _ in answers]
        self._answers = answers
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for answer, closed in zip(self._answers, self.closed, strict=True):
            connection, _ = self._listening.accept()
            self.requests.append(connection.recv(65536))
            connection.sendall(answer)
            connection.close()
            closed.set()

    def close(self) -> None:
        self._listening.close()
        self._thread.join(10)


@pytest.fixture
def serve() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.close()


def ask_twice(server: Server) -> list[EngineHttpResponse]:
    """The second time right after the event loop has stood still until the first connection was closed."""

    async def ask() -> list[EngineHttpResponse]:
        pool = HttpPool(server.address, {})
        first = await pool.request("POST", "/one", b"1")
        assert server.closed[0].wait(10)
        try:
            return [first, await pool.request("POST", "/two", b"2")]
        finally:
            pool.close()

    return asyncio.run(ask())


def test_a_request_on_a_closed_connection_is_sent_again(serve: list[Server]) -> None:
    serve.append(server := Server(ANSWER, ANSWER))
    assert ask_twice(server) == [EngineHttpResponse(200, b"ok"), EngineHttpResponse(200, b"ok")]
    assert [request.split()[1] for request in server.requests] == [b"/one", b"/two"]


def test_a_connection_that_is_lost_after_the_answer_began_is_an_error(serve: list[Server]) -> None:
    serve.append(server := Server(ANSWER, ANSWER[:-1]))
    with pytest.raises(ConnectionError):
        ask_twice(server)
    assert len(server.requests) == 2


def test_a_new_connection_without_an_answer_is_an_error(serve: list[Server]) -> None:
    serve.append(server := Server(ANSWER, b""))
    with pytest.raises(ConnectionError):
        ask_twice(server)
    assert len(server.requests) == 2
