"""What a server that was started elsewhere lacks for a run: named before the first sample, with the flag to add."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from whet.errors import EngineError
from whet.inference.loading import read_model
from whet.inference.vllm.completions import Needs, mistakes
from whet.inference.vllm.members import RunningMember
from whet.rl.config import RunConfig
from whet.rl.supervision.backends import server_needs

IDS = [5, 6, 7]
CONFIG = {"model_type": "qwen3", "hidden_size": 64, "vocab_size": 300}
SERVER: dict[str, Any] = {
    "model": "/models/tiny",
    "config": CONFIG,
    "dtype": "bfloat16",
    "max_model_len": 512,
    "logprobs_mode": "processed_logprobs",
    "lora_rank": 8,
    "routed_experts": True,
}


def needs(**changes: Any) -> Needs:
    fitting: dict[str, Any] = {
        "model": "whet/tiny",
        "config": CONFIG,
        "probe_ids": IDS,
        "dtype": "bfloat16",
        "logprobs_mode": "processed_logprobs",
        "lora_rank": 8,
        "record_experts": True,
    }
    return Needs(**{**fitting, **changes})


@pytest.mark.parametrize(
    ("server", "ids", "flag"),
    [
        ({"config": {**CONFIG, "hidden_size": 128}}, IDS, "--model"),
        ({"config": {**CONFIG, "model_type": "llama"}}, IDS, "--model"),
        ({}, [5, 6], "--tokenizer"),
        ({"dtype": "float32"}, IDS, "--dtype bfloat16"),
        ({"logprobs_mode": "raw_logprobs"}, IDS, "--logprobs-mode processed_logprobs"),
        ({"lora_rank": 0}, IDS, "--enable-lora --max-lora-rank 8"),
        ({"lora_rank": 4}, IDS, "--enable-lora --max-lora-rank 8"),
        ({"routed_experts": False}, IDS, "--enable-return-routed-experts"),
    ],
)
def test_what_does_not_fit_is_named_with_its_flag(server: dict[str, Any], ids: list[int], flag: str) -> None:
    (found,) = mistakes({**SERVER, **server}, ids, needs())
    assert flag in found


def test_a_server_that_fits_has_no_mistakes() -> None:
    assert mistakes(SERVER, IDS, needs()) == []
    assert mistakes(SERVER, None, needs()) == []
    assert (
        mistakes({**SERVER, "lora_rank": 0, "routed_experts": False}, IDS, needs(lora_rank=None, record_experts=False))
        == []
    )


@contextmanager
def serving(answers: Callable[[str], tuple[int, Any]]) -> Iterator[str]:
    """An HTTP server on this machine that answers paths as vLLM does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, content = answers(self.path)
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def started(description: tuple[int, Any], **wanted: Any) -> RunningMember:
    """A member on a server whose workers answer with `description`."""
    known: dict[str, tuple[int, Any]] = {
        "/version": (200, {"version": "0.32.0"}),
        "/v1/models": (200, {"data": [{"id": "policy"}]}),
        "/tokenize": (200, {"tokens": IDS}),
        "/collective_rpc": description,
    }

    async def start(url: str) -> RunningMember:
        member = RunningMember("1", url, max_context=2048, needs=needs(**wanted))
        engine = await member.start()
        assert engine.max_context == member.max_context
        await engine.close()
        return member

    with serving(lambda path: known.get(path, (404, {}))) as url:
        return asyncio.run(start(url))


def test_a_server_with_a_shorter_context_is_used_within_it() -> None:
    assert started((200, {"results": [SERVER]})).max_context == 512
    assert started((200, {"results": [{**SERVER, "max_model_len": 4096}]})).max_context == 2048


def test_all_that_a_server_lacks_is_said_at_once() -> None:
    server = {**SERVER, "dtype": "float32", "logprobs_mode": "raw_logprobs"}
    with pytest.raises(EngineError, match=r"the server at http.*--dtype bfloat16.*--logprobs-mode processed_logprobs"):
        started((200, {"results": [server]}))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, {"detail": "Not Found"}), r"VLLM_SERVER_DEV_MODE=1.*--worker-extension-cls"),
        (
            (500, {"error": {"message": "no attribute 'whet_describe'"}}),
            "without the extension .*--worker-extension-cls",
        ),
    ],
)
def test_a_server_without_the_extension_is_told_how_to_start(answer: tuple[int, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        started(answer)


def test_needs_are_those_of_the_config() -> None:
    def of(**changes: Any) -> Needs:
        data = {
            "name": "r",
            "env": [{"id": "e"}],
            "inference": {"base_url": "http://h:1", "dtype": "float32"},
            **changes,
        }
        return server_needs(RunConfig(**data), read_model("whet/tiny"))

    plain, changed = (
        of(),
        of(lora={"rank": 4}, sampling={"max_tokens": 7, "top_p": 0.5}, eval={"sampling": {"max_tokens": 9}}),
    )
    assert (plain.base, plain.lora_rank, plain.logprobs_mode, plain.dtype) == (
        None,
        None,
        "processed_logprobs",
        "float32",
    )
    assert (changed.lora_rank, changed.logprobs_mode) == (4, "raw_logprobs")
    assert changed.base is not None
    assert (changed.base / "config.json").is_file()
    assert plain.config["vocab_size"] > max(plain.probe_ids)
