"""While an endpoint fails, single calls probe it; and which errors count as its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from whet.errors import (
    ContentFilterError,
    EmptyModelResponseError,
    EndpointDownError,
    EnvError,
    ModelError,
    RewardError,
    RolloutTimeoutError,
    SandboxError,
)
from whet.gepa.calls.outage import Outage, endpoint_failure


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class HTTPError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EndpointDownError("connection refused"), "EndpointDownError: connection refused"),
        (ModelError("429: slow down\nplease"), "ModelError: 429: slow down"),
        (SandboxError("no room"), "SandboxError: no room"),
        (caused(RewardError("the judge failed"), EndpointDownError("judge gone")), "EndpointDownError: judge gone"),
        (caused(RewardError("the judge failed"), HTTPError(503)), "HTTPError: status 503"),
        (caused(RewardError("the judge failed"), HTTPError(400)), None),
        (ContentFilterError("not that"), None),
        (EmptyModelResponseError("nothing"), None),
        (RewardError("no number"), None),
        (EnvError("a bug"), None),
        (RolloutTimeoutError("too long"), None),
        (None, None),
    ],
)
def test_endpoint_failures_differ_from_failures_of_the_rollout(error: Exception | None, told: str | None) -> None:
    assert endpoint_failure(error) == told


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_calls_pass_while_all_is_well() -> None:
    async def all_is_well() -> None:
        outage = Outage(2, 0.0)
        assert not await outage.enter()
        outage.succeeded(probed=False)
        assert not outage.lasts

    run(all_is_well())


def test_one_call_looks_and_the_others_wait_until_it_has_succeeded() -> None:
    async def back_again() -> None:
        outage = Outage(2, 0.0)
        assert outage.failed(probed=False)
        waiting = [asyncio.ensure_future(outage.enter()) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert [task.result() for task in waiting if task.done()] == [True]
        outage.succeeded(probed=True)
        assert sorted(await asyncio.gather(*waiting)) == [False, False, False, False, True]

    run(back_again())


def test_calls_that_were_in_flight_when_it_began_are_one_failure() -> None:
    async def in_flight() -> None:
        outage = Outage(1, 0.0)
        assert all(outage.failed(probed=False) for _ in range(20))
        assert await outage.enter()
        assert not outage.failed(probed=True)

    run(in_flight())


def test_a_cancelled_probe_is_repeated_by_another_call() -> None:
    async def cancelled() -> None:
        outage = Outage(2, 0.0)
        outage.failed(probed=False)
        assert await outage.enter()
        waiting = asyncio.ensure_future(outage.enter())
        await asyncio.sleep(0)
        outage.left(probed=True)
        assert await waiting

    run(cancelled())


def test_give_up_releases_waiting_calls() -> None:
    async def ends() -> None:
        outage = Outage(2, 3600.0)
        outage.failed(probed=False)
        waiting = [asyncio.ensure_future(outage.enter()) for _ in range(5)]
        await asyncio.sleep(0)
        outage.give_up()
        await asyncio.gather(*waiting)
        await outage.enter()

    run(ends())
