"""`whet serve`: which requests it accepts, and the tiny model through it, right to the token."""

import asyncio
import socket

import openai
import pytest

from whet.errors import ConfigError
from whet.gateway.app import Gateway
from whet.gateway.serve import UNREAD_MS, ServeConfig, listen, required_key, serve
from whet.gateway.wire import TurnRequest
from whet.inference.loading import load_policy
from whet.system.offline import is_loopback
from whet.types import UserMessage


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_which_addresses_are_of_this_machine_alone(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit")
def test_a_connection_does_not_wait_for_ever_for_a_client_that_reads_nothing():
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_MS


def test_an_address_that_others_reach_needs_a_key(monkeypatch):
    with pytest.raises(ConfigError, match="open to other machines"):
        required_key(ServeConfig(host="0.0.0.0"))
    with pytest.raises(ConfigError, match="WHET_TEST_KEY, which should hold the key, is not set"):
        required_key(ServeConfig(host="0.0.0.0", api_key_var="WHET_TEST_KEY"))
    monkeypatch.setenv("WHET_TEST_KEY", "sesame")
    assert required_key(ServeConfig(host="0.0.0.0", api_key_var="WHET_TEST_KEY")) == "sesame"
    assert required_key(ServeConfig()) is None


class Served(Exception):
    """Ends a server that is ready."""


def test_the_model_is_served_on_the_device_that_is_given(machine):
    machine()
    loading = []

    def ready(address, name):
        raise Served(name)

    with pytest.raises(ConfigError, match=r'^device = "cuda:3": there is 1 CUDA device here'):
        serve(ServeConfig(device="cuda:3", port=0), ready, loading.append)
    assert loading == []
    with pytest.raises(Served, match="whet/tiny"):
        serve(ServeConfig(device="cpu", port=0, threads=1), ready, loading.append)
    assert loading == ["whet/tiny"]


def test_a_session_with_the_tiny_model_goes_on_from_the_tokens_it_sampled(recorded_session):
    async def run():
        policy = load_policy("whet/tiny", threads=1)
        session = recorded_session(policy.client, "whet/tiny", sampling_args={"max_tokens": 8, "seed": 1})
        messages = [UserMessage("Reverse the text: abc")]
        for text in ("and again", "and again"):
            response = await session.answer(TurnRequest(model="any", messages=messages))
            messages = [*messages, {"role": "assistant", "content": response.message.content}, UserMessage(text)]
        await session.answer(TurnRequest(model="any", messages=messages))
        await policy.engine.close()
        return [step["tokens"] for step in session.state["trajectory"]]

    first, second, third = asyncio.run(run())
    for before, after in ((first, second), (second, third)):
        whole = before["prompt_ids"] + before["completion_ids"]
        assert after["prompt_ids"][: len(whole)] == whole


def test_the_openai_package_gets_the_very_tokens_that_were_sampled():
    from starlette.testclient import TestClient

    policy = load_policy("whet/tiny", threads=1)
    with TestClient(Gateway({"tiny": policy.client}).app, base_url="http://localhost") as http:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "seed": 4}
        answer = http.post("/v1/chat/completions", json={**body, "return_token_ids": True, "logprobs": True}).json()
    completion = openai.types.chat.ChatCompletion.model_validate(answer)
    choice = completion.choices[0]
    assert len(choice.token_ids) == 6
    assert len(choice.logprobs.content) == 6
    assert policy.tokenizer.decode(choice.token_ids).removesuffix("<|im_end|>") == choice.message.content
