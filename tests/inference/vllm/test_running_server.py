"""A server that was started elsewhere: what it serves, and what is said where none is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from whet.errors import EngineError
from whet.inference.loading import read_model
from whet.inference.model_names import resolve_model
from whet.inference.vllm.completions import Needs
from whet.inference.vllm.members import RunningMember, RunningServer
from whet.inference.vllm.server import SERVED_NAME
from whet.rl.config import RunConfig
from whet.rl.supervision.backends import server_needs


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


def test_nothing_answers(held_port: int) -> None:
    server = RunningServer(f"http://127.0.0.1:{held_port}/v1", name="engine-0")
    with pytest.raises(EngineError, match=rf"engine-0: no server answers at http://127\.0\.0\.1:{held_port} "):
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
def test_a_real_server_is_known_by_its_model(vllm_server, vllm_servers, monkeypatch, suffix) -> None:
    monkeypatch.setenv("VLLM_API_KEY", vllm_server.key)

    async def check() -> RunningServer:
        async with vllm_servers.relay(vllm_server.socket) as url:
            server = RunningServer(url + suffix, name="engine-0")
            await server.ready()
        return server

    server = asyncio.run(check())
    assert server.model == SERVED_NAME
    assert server.vllm_version
    assert vllm_server.alive


@pytest.mark.parts
@pytest.mark.parametrize(("key", "words"), [(None, "requests without a key; set VLLM_API_KEY"), ("no", "the key in")])
def test_a_real_server_refuses_other_keys(vllm_server, vllm_servers, monkeypatch, key, words) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("VLLM_API_KEY", key)

    async def check() -> None:
        async with vllm_servers.relay(vllm_server.socket) as url:
            await RunningServer(url, name="engine-0").ready()

    with pytest.raises(EngineError, match=words):
        asyncio.run(check())


def fitting(**changes: Any) -> Needs:
    """What a run of whet/tiny needs of the tests' server."""
    config = RunConfig(name="r", env=({"id": "e"},), inference={"base_url": "http://h:1", "dtype": "float32"})
    return replace(server_needs(config, read_model("whet/tiny")), **changes)


@pytest.mark.parts
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"lora_rank": 16, "base": resolve_model("whet/tiny")}, ""),
        ({"lora_rank": 64}, "--enable-lora --max-lora-rank 64"),
        ({"dtype": "bfloat16", "probe_ids": [1]}, r"--tokenizer; .*--dtype bfloat16"),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode raw_logprobs"),
        ({"config": {"hidden_size": 17}}, "hidden_size [0-9]+ and not 17"),
        ({"base": Path("/nowhere")}, "the server at http"),
    ],
)
def test_a_real_server_says_how_it_was_started(vllm_server, vllm_servers, monkeypatch, changes, words) -> None:
    monkeypatch.setenv("VLLM_API_KEY", vllm_server.key)

    async def check() -> int:
        async with vllm_servers.relay(vllm_server.socket) as url:
            member = RunningMember("1", url, max_context=2048, needs=fitting(**changes))
            await (await member.start()).close()
            return member.max_context

    if words:
        with pytest.raises(EngineError, match=words):
            asyncio.run(check())
    else:
        assert asyncio.run(check()) == 512
