"""A policy behind the `Client` interface, on a real (random) model."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts.tiny_model.tokenizer import build_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from whet.errors import ConfigError, ModelLoadError, OverlongPromptError
from whet.inference.loading import Policy, load_policy
from whet.inference.model_names import resolve_model
from whet.types import Response, State, UserMessage


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def policy(directory: Path) -> Policy:
    return load_policy(str(directory), seed=0)


def ask(policy: Policy, text: str = "hello", **args: Any) -> Response:
    state = State(trajectory=[], trajectory_id="r")
    return asyncio.run(policy.client.get_response([UserMessage(text)], "m", args, state=state))


def test_an_answer_carries_its_tokens(policy: Policy) -> None:
    response = ask(policy, max_tokens=9, seed=1)
    tokens = response.message.tokens
    assert tokens["prompt_ids"] == policy.renderer.render([UserMessage("hello")])
    assert len(tokens["completion_ids"]) == len(tokens["completion_logprobs"]) <= 9
    assert tokens["policy_version"] == [[0, len(tokens["completion_ids"])]]
    assert response.usage.completion_tokens == len(tokens["completion_ids"])


def test_the_same_seed_gives_the_same_answer_and_another_another(policy: Policy) -> None:
    first, again, other = (ask(policy, max_tokens=20, seed=seed).message.tokens for seed in (1, 1, 2))
    assert first == again
    assert first["completion_ids"] != other["completion_ids"]


def test_an_answer_that_ran_out_of_tokens_says_so(policy: Policy) -> None:
    message = ask(policy, max_tokens=2, seed=1).message
    assert (message.finish_reason, message.is_truncated) == ("length", True)


def test_a_stop_string_ends_the_content_before_it_and_stays_in_the_ids(policy: Policy) -> None:
    free = policy.renderer.decode(ask(policy, max_tokens=30, seed=1).message.tokens["completion_ids"])
    stop = free[10:12]
    message = ask(policy, max_tokens=30, seed=1, stop=[stop]).message
    assert message.finish_reason == "stop"
    assert stop not in message.content
    assert stop in policy.renderer.decode(message.tokens["completion_ids"])


def test_the_room_left_bounds_the_answer(policy: Policy) -> None:
    message = ask(policy, "y" * 230, max_tokens=200, seed=1).message
    assert len(message.tokens["prompt_ids"]) + len(message.tokens["completion_ids"]) <= 256


def test_a_prompt_without_room_for_one_token_is_overlong(policy: Policy) -> None:
    with pytest.raises(OverlongPromptError, match="256"):
        ask(policy, "y" * 300, max_tokens=5)


def test_a_misspelt_sampling_argument_is_the_users_mistake(policy: Policy) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        ask(policy, max_token=5)


def test_a_shorter_context_can_be_asked_for(directory: Path) -> None:
    with pytest.raises(OverlongPromptError, match="64"):
        ask(load_policy(str(directory), max_context=64), "y" * 100)


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "a/b/c", "nowhere"])
def test_a_directory_that_is_not_there_is_said_so(model: str) -> None:
    with pytest.raises(ModelLoadError, match="no model directory"):
        resolve_model(model)


def test_a_model_that_cannot_be_fetched_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelLoadError, match="could not be downloaded") as caught:
        resolve_model("nobody/nothing-at-all")
    assert "\n" not in str(caught.value)


def test_a_proxy_that_refuses_a_download_is_one_clear_line(tmp_path: Path) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_error(502)

    program = "from whet.inference.model_names import resolve_model; resolve_model('nobody/nothing-at-all')"
    with HTTPServer(("127.0.0.1", 0), Refusing) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        env = {**os.environ, "HTTPS_PROXY": f"http://127.0.0.1:{proxy.server_port}", "HF_HUB_CACHE": str(tmp_path)}
        env = {
            name: value
            for name, value in env.items()
            if name not in ("HF_HUB_OFFLINE", "https_proxy", "no_proxy", "NO_PROXY")
        }
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
        proxy.shutdown()
    assert done.stderr.splitlines()[-1].startswith("whet.errors.ModelLoadError: 'nobody/nothing-at-all' is not a dir")
    assert "502" in done.stderr.splitlines()[-1]


def test_a_torn_tokenizer_is_a_model_load_error(directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match="tokenizer"):
        load_policy(str(tmp_path))


def test_a_dtype_nobody_knows_is_refused(directory: Path) -> None:
    with pytest.raises(ModelLoadError, match="bfloat16"):
        load_policy(str(directory), dtype="int3")
