"""Clients of a streamed answer that leave, stall or never read, on a real engine and real sockets."""

import json
import socket
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("torch")

import torch
from scripts.tiny_model.tokenizer import build_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from whet.gateway.app import Gateway
from whet.inference.loading import load_policy

CONTEXT = 4096


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A model with random weights: when the likeliest token is taken, it continues until its context is full."""
    path = tmp_path_factory.mktemp("endless")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    return load_policy(str(path), seed=0, max_rows=4)


@pytest.fixture
def gateway(policy):
    return Gateway({"endless": policy.client})


@pytest.fixture
def address(gateway, running):
    with running(gateway, send_buffer=4096) as address:
        yield address


def body(**more):
    asked = {"model": "endless", "temperature": 0, "messages": [{"role": "user", "content": "hi"}], **more}
    return json.dumps(asked).encode()


JSON = {"Content-Type": "application/json"}


def asking(address, path="/v1/chat/completions", *, key="", **more):
    """A socket on which a streamed answer has been asked for; it takes no more than a few kilobytes unread."""
    host, port = address.removeprefix("http://").split(":")
    asked = socket.socket()
    asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked.settimeout(60)
    asked.connect((host, int(port)))
    sent = body(stream=True, **more)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Api-Key: {key}\r\n"
    asked.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
    return asked


def ask(address, path="/v1/chat/completions", *, key="none"):
    request = urllib.request.Request(f"{address}{path}", data=body(max_tokens=8), headers={**JSON, "X-Api-Key": key})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def figures(address):
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
        lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if line.startswith("whet_")]
    return {name: float(value) for name, _, value in lines}


def wait_until_over(address):
    while figures(address)["whet_requests_in_flight"]:
        time.sleep(0.01)


def ended(address, status):
    return figures(address).get(f'whet_requests_total{{interface="/v1/chat/completions",status="{status}"}}', 0)


def test_the_model_would_go_on(address, policy):
    before = policy.engine.stats.generated_tokens
    with asking(address, max_tokens=300) as asked:
        said = b""
        while b"[DONE]" not in said:
            said += asked.recv(65536)
    assert b'"finish_reason":"length"' in said
    assert policy.engine.stats.generated_tokens - before == 300


def test_one_that_leaves_while_it_is_answered_gives_its_row_back(address, policy):
    before = policy.engine.stats.generated_tokens
    with asking(address) as leaving:
        assert b"200 OK" in leaving.recv(1000)
        assert ask(address) == 8
    wait_until_over(address)
    assert policy.engine.requests_in_flight == 0
    assert policy.engine.stats.generated_tokens - before < CONTEXT - 100
    assert ended(address, 499) == 1
    assert ask(address) == 8


@pytest.mark.parametrize("reads", [0, 2000], ids=["never reads", "stalls"])
def test_one_that_does_not_read_is_given_up_and_others_are_served(address, policy, monkeypatch, reads):
    monkeypatch.setattr("whet.gateway.streams.WRITE_S", 0.3)
    with asking(address) as stalled:
        if reads:
            assert stalled.recv(reads)
        assert [ask(address) for _ in range(3)] == [8] * 3
        wait_until_over(address)
        assert policy.engine.requests_in_flight == 0
        assert ended(address, 499) == 1
        assert ask(address) == 8


def test_no_more_waits_for_a_slow_reader_than_there_is_room_for(address, policy, monkeypatch):
    monkeypatch.setattr("whet.gateway.streams.MOST_PENDING", 500)
    with asking(address) as slow:
        said = slow.recv(1000)
        while policy.engine.requests_in_flight:
            time.sleep(0.01)  # the engine and the server run in this process, and need the interpreter's lock
        while part := slow.recv(65536):
            said += part
            if b"reads too slowly" in said:
                break
    assert b'"error"' in said
    assert policy.engine.requests_in_flight == 0


def test_a_turn_that_was_not_read_is_not_in_its_session(address, gateway, policy, recorded_session):
    session = gateway.sessions.add(recorded_session(policy.client, "endless"))
    path = f"/sessions/{session.id}/v1/chat/completions"
    with asking(address, path, key=session.secret) as leaving:
        assert b"200 OK" in leaving.recv(1000)
    wait_until_over(address)
    assert session.state["trajectory"] == []
    assert ask(address, path, key=session.secret) == 8
    assert [len(step["tokens"]["completion_ids"]) for step in session.state["trajectory"]] == [8]


def test_a_streamed_turn_is_recorded_as_it_was_sampled(address, gateway, policy, recorded_session):
    session = gateway.sessions.add(recorded_session(policy.client, "endless"))
    with asking(address, f"/sessions/{session.id}/v1/chat/completions", key=session.secret, max_tokens=20) as asked:
        said = b""
        while b"[DONE]" not in said:
            said += asked.recv(65536)
    step = session.state["trajectory"][0]
    events = [json.loads(line[6:]) for line in said.decode().split("\n") if line.startswith("data: {")]
    streamed = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    assert streamed == step["completion"][0]["content"]
    assert step["tokens"]["completion_ids"] == step["response"]["message"]["tokens"]["completion_ids"]
    assert len(step["tokens"]["completion_ids"]) == 20
