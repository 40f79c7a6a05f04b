"""While an endpoint fails, one call at a time looks whether it is back; and what counts as its failure."""

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
        (EndpointDownError("nobody is there"), "EndpointDownError: nobody is there"),
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
def test_what_failed_around_a_rollout_is_told_from_what_failed_in_it(error: Exception | None, told: str | None) -> None:
    assert endpoint_failure(error) == told


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def test_calls_pass_while_all_is_well() -> None:
    async def all_is_well() -> None:
        outage = Outage(2, 0.0)
        assert not await outage.enter()
        outage.succeeded(looked=False)
        assert not outage.lasts

    run(all_is_well())


def test_one_call_looks_and_the_others_wait_until_it_has_succeeded() -> None:
    async def back_again() -> None:
        outage = Outage(2, 0.0)
        assert outage.failed(looked=False)
        waiting = [asyncio.ensure_future(outage.enter()) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert [task.result() for task in waiting if task.done()] == [True]
        outage.succeeded(looked=True)
        assert sorted(await asyncio.gather(*waiting)) == [False, False, False, False, True]

    run(back_again())


def test_calls_that_were_in_flight_when_it_began_are_one_failure() -> None:
    outage = Outage(1, 0.0)
    assert all(outage.failed(looked=False) for _ in range(20))
    assert not outage.failed(looked=True)


def test_another_looks_where_the_one_that_looked_was_cancelled() -> None:
    async def cancelled() -> None:
        outage = Outage(2, 0.0)
        outage.failed(looked=False)
        assert await outage.enter()
        waiting = asyncio.ensure_future(outage.enter())
        await asyncio.sleep(0)
        outage.left(looked=True)
        assert await waiting

    run(cancelled())


def test_nobody_rests_once_the_run_ends() -> None:
    async def ends() -> None:
        outage = Outage(2, 3600.0)
        outage.failed(looked=False)
        waiting = [asyncio.ensure_future(outage.enter()) for _ in range(5)]
        await asyncio.sleep(0)
        outage.give_up()
        await asyncio.gather(*waiting)
        await outage.enter()

    run(ends())
