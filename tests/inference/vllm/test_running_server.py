"""A server that was started elsewhere: what it serves, and what is said where none is there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from whet.errors import EngineError
from whet.inference.vllm.running_server import RunningServer
from whet.inference.vllm.server import SERVED_NAME


@pytest.fixture
def silent_server() -> Iterator[str]:
    """An HTTP server that is not vLLM."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.asynccontextmanager
async def relay(path: Path):
    """An address that leads to the server on a Unix socket."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(path)
        await asyncio.gather(pass_on(reader, ours), pass_on(theirs, writer))

    async with await asyncio.start_server(connected, "127.0.0.1") as server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())


def test_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = RunningServer(f"http://127.0.0.1:{port}/v1", name="engine-0")
    with pytest.raises(EngineError, match=rf"engine-0: no server answers at http://127\.0\.0\.1:{port} "):
        asyncio.run(server.ready())


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://a:b:c", ""])
def test_an_address_that_is_none(url) -> None:
    with pytest.raises(EngineError, match="no server answers"):
        asyncio.run(RunningServer(url, name="engine-0").ready())


def test_another_server_answers(silent_server) -> None:
    with pytest.raises(EngineError, match=r"is not a vLLM server: /version has status 404, /v1/models 404\."):
        asyncio.run(RunningServer(silent_server, name="engine-0").ready())


@pytest.mark.parts
@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_real_server_is_known_by_its_model(vllm_server, monkeypatch, suffix) -> None:
    monkeypatch.setenv("VLLM_API_KEY", vllm_server.key)

    async def check() -> RunningServer:
        async with relay(vllm_server.socket) as url:
            server = RunningServer(url + suffix, name="engine-0")
            await server.ready()
            await server.stop()
        return server

    server = asyncio.run(check())
    assert server.model == SERVED_NAME
    assert server.vllm_version
    assert server.alive
    assert vllm_server.alive


@pytest.mark.parts
@pytest.mark.parametrize(("key", "words"), [(None, "requests without a key; set VLLM_API_KEY"), ("no", "the key in")])
def test_a_real_server_refuses_other_keys(vllm_server, monkeypatch, key, words) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("VLLM_API_KEY", key)

    async def check() -> None:
        async with relay(vllm_server.socket) as url:
            await RunningServer(url, name="engine-0").ready()

    with pytest.raises(EngineError, match=words):
        asyncio.run(check())
