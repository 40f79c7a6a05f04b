"""What a vLLM server is asked for when it sleeps and wakes, in which order. A real one is in `test_engine.py`.

A program of a few lines answers over a Unix socket: vLLM's sleep mode frees memory on a GPU alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import EndpointDownError, ModelError, TrainingError
from whet.inference.protocol import WeightUpdate
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.http_connection import HttpPool
from whet.inference.vllm.members import ServerOptions

GIB = 1 << 30
MODEL, ADAPTER = WeightUpdate(3, Path("weights")), WeightUpdate(3, Path("adapter"), kind="adapter")


class Server:
    """Notes what it is asked for. Its two GPUs have 1 GiB free each, and 40 while it sleeps."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.asleep = False
        self.differ: list[str] = []
        self.fails_at = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            length = next(
                (int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length")), 0
            )
            body = await reader.readexactly(length)
            path = head.split(" ")[1]
            status, content = 200, self._content(path, body)
            if path == self.fails_at:
                status, content = 500, {"error": {"message": "CUDA error: out of memory"}}
            text = json.dumps(content).encode()
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)
            await writer.drain()
        writer.close()

    def _content(self, path: str, body: bytes) -> dict[str, Any]:
        called = json.loads(body).get("method", "") if path == "/collective_rpc" else ""
        self.asked.append(called or path)
        if path.startswith("/sleep"):
            self.asleep = True
        if called == "whet_free_bytes":
            return {"results": [{"free": (40 if self.asleep else 1) * GIB}] * 2}
        return {"results": [{"differ": self.differ, "unchecked": []}]}


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return ""


def run(server: Server, directory: Path, body: Callable[[VllmEngine], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        path = directory / "api"
        listening = await asyncio.start_unix_server(server.answer, path)
        engine = VllmEngine(HttpPool(path, {}), max_context=64)
        try:
            return await body(engine)
        finally:
            await engine.close()
            listening.close()

    return asyncio.run(whole())


@pytest.fixture
def server() -> Server:
    return Server()


def test_all_weights_are_given_up_and_loaded_before_there_is_a_cache(server: Server, tmp_path: Path) -> None:
    async def body(engine: VllmEngine) -> int:
        freed = await engine.sleep()
        await engine.wake(MODEL)
        assert engine.version == 3
        return freed

    assert run(server, tmp_path, body) == 2 * 39 * GIB
    assert server.asked == [
        "whet_free_bytes",
        "/sleep?level=2",
        "whet_free_bytes",
        "/wake_up?tags=weights",
        "whet_load_weights",
        "/wake_up?tags=kv_cache",
    ]


def test_under_an_adapter_the_base_is_kept_and_the_adapter_is_loaded_under_a_new_name(
    server: Server, tmp_path: Path
) -> None:
    async def body(engine: VllmEngine) -> None:
        await engine.load_weights(WeightUpdate(2, Path("adapter"), kind="adapter"))
        server.asked.clear()
        await engine.sleep()
        await engine.wake(ADAPTER)

    run(server, tmp_path, body)
    assert server.asked == [
        "whet_free_bytes",
        "/sleep?level=1",
        "whet_free_bytes",
        "/wake_up",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ]


def test_weights_that_differ_after_a_wake_end_the_run(server: Server, tmp_path: Path) -> None:
    async def body(engine: VllmEngine) -> None:
        await engine.sleep()
        server.differ = ["model.embed_tokens.weight"]
        with pytest.raises(TrainingError, match=r"1 tensors differ, the first is model\.embed_tokens\.weight"):
            await engine.wake(MODEL)

    run(server, tmp_path, body)
    assert server.asked[-1] == "whet_load_weights"


def test_without_its_weights_it_does_not_wake_with_an_adapter_alone(server: Server, tmp_path: Path) -> None:
    async def body(engine: VllmEngine) -> None:
        await engine.sleep()
        with pytest.raises(ModelError, match="cannot wake with an adapter alone"):
            await engine.wake(ADAPTER)

    run(server, tmp_path, body)
    assert "/wake_up" not in server.asked


def test_a_wake_that_fails_says_what_the_server_said(server: Server, tmp_path: Path) -> None:
    async def body(engine: VllmEngine) -> None:
        await engine.sleep()
        server.fails_at = "/wake_up?tags=kv_cache"
        with pytest.raises(EndpointDownError, match="CUDA error: out of memory"):
            await engine.wake(MODEL)

    run(server, tmp_path, body)


def test_a_server_on_a_gpu_is_started_with_sleep_mode_where_it_is_to_sleep() -> None:
    def flags(**options: Any) -> dict[str, Any]:
        return ServerOptions(python=Path("python"), max_context=64, **options).server_flags()

    assert flags(on_cuda=True, sleeps=True)["enable-sleep-mode"] is True
    assert "enable-sleep-mode" not in flags(on_cuda=True)
    assert "enable-sleep-mode" not in flags(on_cuda=False, sleeps=True)  # which vLLM refuses
