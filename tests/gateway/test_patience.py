"""Requests that never arrive whole: a head or a body that is sent too slowly ends its connection, on every server."""

import ast
import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")

import uvicorn

import whet
from whet.gateway import connections, patience
from whet.gateway.serve import listen

SOURCE = Path(whet.__file__).parent
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    await answer(send, str(size).encode())


async def read_nothing(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, b"0")


async def answer(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(app: Any, http: Any) -> Iterator[tuple[str, int]]:
    """Address of a server of `app` with the connections `http`."""
    with listen("127.0.0.1", 0) as listening:
        options = uvicorn.Config(app, http=http, ws="none", log_level="critical", lifespan="off")
        options.timeout_graceful_shutdown = 1
        server = uvicorn.Server(options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(params=["h11", "httptools"])
def http(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (patience, connections):
        monkeypatch.setattr(module, "HEAD_S", 0.3)
        monkeypatch.setattr(module, "BODY_S", 0.3)
    return patience.PatientConnection if request.param == "h11" else connections.limited_connections()


def until_closed(client: socket.socket, drip: bytes = b"") -> bytes:
    """What the server sends until it closes the connection, while the client sends `drip` again and again."""
    said = b""
    client.settimeout(0.05)
    for _ in range(1200):
        with contextlib.suppress(TimeoutError):
            try:
                piece = client.recv(4096)
                said += piece
            except ConnectionError:
                piece = b""
            if not piece:
                return said
        with contextlib.suppress(OSError):
            client.sendall(drip)
    raise AssertionError("the connection was not closed within a minute")


def said_to(http: Any, app: Any, beginnings: list[bytes], drip: bytes = b"") -> list[bytes]:
    """What one server says to clients at the same time, each of which sends its beginning and then `drip` at a time."""

    with serving(app, http) as address, ThreadPoolExecutor(len(beginnings)) as pool:

        def send(beginning: bytes) -> bytes:
            with socket.create_connection(address, timeout=60) as client:
                client.sendall(beginning)
                return until_closed(client, drip)

        return list(pool.map(send, beginnings))


@pytest.mark.parametrize("app", [read_all, read_nothing])
def test_connection_of_a_client_that_sends_a_byte_at_a_time_ends(http: Any, app: Any) -> None:
    beginnings = [b"", b"GET / HT", HEAD + b"x"]
    answers = said_to(http, app, beginnings, drip=b"x")
    for sent, said in zip(beginnings, answers, strict=True):
        expected = b"HTTP/1.1 200" if app is read_nothing and sent[:4] == b"POST" else b"HTTP/1.1 4"
        assert said.startswith(expected), sent


def test_request_that_arrives_while_the_loop_stands_still_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LOOK_S", 0.05)
    refused: list[bool] = []

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        waiting = patience.Patience(loop, lambda: refused.append(True), lambda: False)
        waiting.wait_for("head", 0.01)
        time.sleep(0.2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # in these rounds the loop reads what has arrived
        assert not refused
        waiting.wait_for(None)

    asyncio.run(wait())


def test_silent_client_is_answered_408(http: Any) -> None:
    beginnings = [b"", HEAD[:20], HEAD, HEAD + b"x" * 500]
    for sent, said in zip(beginnings, said_to(http, read_all, beginnings), strict=True):
        assert said.startswith(b"HTTP/1.1 408"), sent


def test_body_that_arrives_at_the_lowest_rate_is_read(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SLOWEST", 10)  # bytes a second: each piece below is worth minutes
    with serving(read_all, http) as address, socket.create_connection(address, timeout=60) as client:
        client.sendall(HEAD + b"x" * 10_000)
        for _ in range(9):
            threading.Event().wait(0.05)
            client.sendall(b"x" * 10_000)
        said = client.recv(4096)
        while b"\r\n\r\n100000" not in said:
            said += client.recv(4096)


def test_each_server_limits_how_slowly_a_request_may_arrive() -> None:
    servers = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        # whose `answer` makes a server of its third argument
        by_answer = "from whet.gateway.serve import" in text or path == SOURCE / "gateway" / "serve.py"
        for node in ast.walk(ast.parse(text)) if by_answer or "uvicorn.Config(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "uvicorn.Config":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                servers.append((str(path.relative_to(SOURCE)), given.get("http")))
            elif by_answer and isinstance(node, ast.Call) and ast.unparse(node.func) == "answer" and len(node.args) > 3:
                servers.append((str(path.relative_to(SOURCE)), ast.unparse(node.args[2])))
    servers.remove(("gateway/serve.py", "http"))  # of `answer`, whose callers are in the list
    assert len(servers) >= 5
    assert {http for _, http in servers} <= {"limited_connections()", "PatientConnection"}, servers
