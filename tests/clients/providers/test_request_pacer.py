"""Requests that begin together go out one after the other, and none is held up for long."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

import pytest

from whet.clients.config import ClientConfig
from whet.clients.providers import request_pacer as door_module
from whet.clients.providers.openai_chat import OpenAIChatCompletionsClient
from whet.clients.providers.request_pacer import TURNS, RequestPacer


@pytest.fixture
def turns_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine takes for them."""
    monkeypatch.setattr(door_module, "REQUEST_S", math.inf)


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), timeout=30))


async def entering(pacer: RequestPacer, name: str, entered: list[str]) -> None:
    await pacer.enter()
    entered.append(name)


def begin(pacer: RequestPacer, names: str, entered: list[str]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(entering(pacer, name, entered)) for name in names]


@pytest.mark.usefixtures("turns_are_short")
def test_they_enter_in_order_each_some_turns_of_the_loop_after_the_one_before() -> None:
    async def body() -> None:
        pacer, entered, seen = RequestPacer(), list[str](), list[int]()
        tasks = begin(pacer, "abcd", entered)
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            seen.append(len(entered))
        assert entered == ["a", "b", "c", "d"]
        assert all(seen.count(number) >= TURNS for number in (1, 2, 3))

    run(body)


def test_who_comes_alone_enters_at_once() -> None:
    async def body() -> None:
        pacer, entered = RequestPacer(), list[str]()
        for name in "ab":
            await entering(pacer, name, entered)
            for _ in range(2 * TURNS):
                await asyncio.sleep(0)
        coming = pacer.enter()
        with pytest.raises(StopIteration):  # without waiting for anything
            coming.send(None)

    run(body)


def test_where_turns_of_the_loop_are_long_more_enter_in_one() -> None:
    async def body() -> None:
        pacer, entered = RequestPacer(), list[str]()
        tasks = begin(pacer, "abcdefgh", entered)
        await asyncio.sleep(0)
        assert entered == ["a"]
        time.sleep(0.1)  # the loop is kept busy, by whatever
        for _ in range(TURNS + 1):
            await asyncio.sleep(0)
        assert entered == list("abcdefgh")
        assert all(task.done() for task in tasks)

    run(body)


def test_one_that_is_cancelled_while_it_waits_keeps_nobody_waiting() -> None:
    async def body() -> None:
        pacer, entered = RequestPacer(), list[str]()
        first, second, third = begin(pacer, "abc", entered)
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert entered == ["a", "c"]

    run(body)


def test_a_door_that_a_loop_has_left_shut_is_open_to_the_next() -> None:
    pacer, entered = RequestPacer(), list[str]()
    asyncio.run(entering(pacer, "a", entered))
    asyncio.run(entering(pacer, "b", entered))
    assert entered == ["a", "b"]


@pytest.mark.usefixtures("turns_are_short")
def test_the_first_request_of_a_client_is_out_before_the_next_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    async def body() -> None:
        client = OpenAIChatCompletionsClient(ClientConfig(api_base_url="http://127.0.0.1:9/v1"))
        happened: list[str] = []

        async def create(name: str) -> None:
            happened.append(f"begin {name}")
            await asyncio.sleep(0)
            happened.append(f"sent {name}")

        await asyncio.gather(*(client.call(create, {}, name=name) for name in "abc"))
        await client.close()
        assert happened == ["begin a", "sent a", "begin b", "sent b", "begin c", "sent c"]

    run(body)
