"""An endpoint that was never reached is given up after some seconds; one that was reached is waited for."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
from typing import Any

import pytest

import whet
from whet.clients.make import make_client
from whet.clients.providers import connections
from whet.clients.providers.connections import GRACE_S, FirstContact, reason
from whet.errors import EndpointDownError, EndpointUnreachableError
from whet.types import UserMessage

pytest.importorskip("openai")

ANSWERS: dict[str, Any] = {
    "openai_chat_completions": {
        "id": "c", "created": 5, "model": "m", "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
    },
    "anthropic_messages": {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": "x"}],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}  # fmt: skip


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_server_has_some_seconds_to_come_up(clock: Clock) -> None:
    contact = FirstContact(clock)
    assert not contact.failed()
    clock.now += GRACE_S - 0.5
    assert not contact.failed()
    clock.now += 0.5
    assert contact.failed()


def test_the_seconds_begin_with_the_first_failure_and_not_before(clock: Clock) -> None:
    contact = FirstContact(clock)
    clock.now += 1000
    assert not contact.failed()


@pytest.mark.parametrize("before", [0, 3])
def test_one_that_was_reached_is_never_given_up(clock: Clock, before: int) -> None:
    contact = FirstContact(clock)
    for _ in range(before):
        contact.failed()
    contact.made()
    for _ in range(10):
        clock.now += GRACE_S
        assert not contact.failed()


def test_the_reason_is_the_systems(clock: Clock) -> None:
    error = ConnectionError("All connection attempts failed")
    error.__cause__ = OSError("several")
    error.__cause__.__context__ = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 9)")
    assert reason(error) == "Connection refused"
    error.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert reason(error) == "Name or service not known"
    assert reason(ConnectionError("handshake")) == "handshake"
    assert reason(TimeoutError()) == "no connection was made in time"


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """No grace period: an endpoint that is not there at once is given up."""
    monkeypatch.setattr(connections, "GRACE_S", 0.0)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def asked(*urls: str, kind: Any = "openai_chat_completions", times: int = 1, **config: Any) -> list[Any]:
    """What came of requests one after the other: a text, or an error."""

    async def run() -> list[Any]:
        first, *others = (
            {"api_base_url": url, "max_retries": 4, "api_key_var": "WHET_TEST_KEY", **config} for url in urls
        )
        spread = {"endpoint_configs": [whet.EndpointConfig(**one) for one in (first, *others)]} if others else {}
        client = make_client(whet.ClientConfig(client_type=kind, **first, **spread))
        try:
            return [await one(client) for _ in range(times)]
        finally:
            await client.close()

    async def one(client: Any) -> Any:
        try:
            return (await client.get_response([UserMessage("hi")], "m", {})).message.content
        except Exception as error:
            return error

    return asyncio.run(run())


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize("kind", ["openai_chat_completions", "openai_responses", "anthropic_messages"])
def test_a_request_to_nobody_is_an_error_of_the_run_in_one_line(kind: str, held_port: int) -> None:
    pytest.importorskip(kind.partition("_")[0])
    url = f"http://127.0.0.1:{held_port}/v1"
    (error,) = asked(url, kind=kind)
    assert isinstance(error, EndpointUnreachableError)
    assert str(error) == (
        f"{url}/ cannot be reached: Connection refused. No server has answered there yet: check the address, or start "
        "the server and try again."
    )


def test_in_its_first_seconds_a_server_is_asked_as_often_as_any(held_port: int) -> None:
    (error,) = asked(f"http://127.0.0.1:{held_port}/v1", max_retries=1)
    assert isinstance(error, EndpointDownError)


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize("kind", ANSWERS)
def test_one_that_has_answered_is_asked_again_while_it_is_away(server: Any, kind: str) -> None:
    pytest.importorskip(kind.partition("_")[0])
    server.body, server.reply_headers = ANSWERS[kind], {"Connection": "close"}
    url = server.url if kind.startswith("openai") else server.origin
    numbers = itertools.count()

    async def run() -> list[Any]:
        client = make_client(whet.ClientConfig(client_type=kind, api_base_url=url, max_retries=1))
        found: list[Any] = []
        for _ in range(2):
            try:
                found.append((await client.get_response([UserMessage("hi")], "m", {})).message.content)
            except Exception as error:
                found.append(error)
            if next(numbers) == 0:
                server.close()
        await client.close()
        return found

    answer, error = asyncio.run(run())
    assert answer == "x"
    assert isinstance(error, EndpointDownError)


@pytest.mark.usefixtures("no_grace")
def test_a_replica_that_is_not_there_is_done_without(server: Any, held_port: int) -> None:
    server.body = ANSWERS["openai_chat_completions"]
    assert asked(f"http://127.0.0.1:{held_port}/v1", server.url, times=3) == ["x"] * 3


@pytest.mark.usefixtures("no_grace")
def test_replicas_of_which_none_is_there_are_an_error_of_the_run(held_port: int) -> None:
    url = f"http://127.0.0.1:{held_port}/v1"
    (error,) = asked(url, url)
    assert isinstance(error, EndpointUnreachableError)
    assert str(error).startswith(f"none of 2 replicas answers. The last: {url}/ cannot be reached")


@pytest.mark.usefixtures("no_grace")
def test_who_asks_the_packages_client_by_itself_gets_the_packages_errors(held_port: int) -> None:
    import openai

    async def run() -> None:
        client: Any = whet.OpenAIChatCompletionsClient(
            whet.ClientConfig(api_base_url=f"http://127.0.0.1:{held_port}/v1", max_retries=0)
        )
        with pytest.raises(openai.APIConnectionError):
            await client.client.chat.completions.create(model="m", messages=[])
        await client.close()

    asyncio.run(run())
