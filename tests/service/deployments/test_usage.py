"""What deployments were used for is counted once: by deployment, owner and day, also where the database was away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from whet.hub.errors import HubError
from whet.hub.storage.tables import TokenRow
from whet.service.storage.tables import UsageDay


def days(service: Any) -> dict[str, tuple[int, int, int]]:
    with service.database.read() as session:
        found = session.scalars(select(UsageDay)).all()
    return {row.owner: (row.requests, row.input_tokens, row.output_tokens) for row in found}


def test_requests_and_tokens_are_counted_for_the_owner_whoever_asks(service: Any) -> None:
    service.hub.organisation("team", "ann", bob="viewer")
    own = service.deploy("ann", service.run(), name="a")["id"]
    shared = service.deploy("ann", service.run(owner="team", user="ann"), name="b")["id"]

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            await serving.ask("ann", "whet/tiny:a", tokens=3, ignore_eos=True)
            await serving.ask("bob", "whet/tiny:b", tokens=4, n=2)
            await serving.ask("bob", "whet/tiny:a")  # 404
            await serving.ask("bob", "whet/tiny:b", temperature=-1)  # 400
            serving.meter.write()
            once = days(service)
            serving.meter.write()
            return once

    once = asyncio.run(go())
    assert days(service) == once
    rows = {one: service.row(one) for one in (own, shared)}
    assert {one: row.requests for one, row in rows.items()} == {own: 1, shared: 1}
    assert rows[shared].input_tokens == rows[own].input_tokens > 0  # of two answers to one prompt it counts once
    assert rows[own].output_tokens <= 3 < rows[shared].output_tokens <= 8
    assert once == {
        owner: (1, rows[one].input_tokens, rows[one].output_tokens) for owner, one in (("ann", own), ("team", shared))
    }
    assert all(row.last_used_at is not None for row in rows.values())
    shown = service.hub.ok("GET", f"/deployments/{own}", "ann")
    assert (shown["requests"], shown["output_tokens"]) == (1, rows[own].output_tokens)
    with service.database.read() as session:
        used = {row.user.name for row in session.scalars(select(TokenRow)) if row.last_used_at is not None}
    assert {"ann", "bob"} <= used


def test_what_could_not_be_written_is_written_later_and_once(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = service.deploy("ann", service.run(), name="a")["id"]

    async def go() -> None:
        async with service.serving() as serving:
            meter = serving.meter
            meter.note(made, "ann", "t", 5, 7)
            with monkeypatch.context() as patched:
                patched.setattr(service.database, "write", lambda: (_ for _ in ()).throw(HubError("busy", "busy")))
                with pytest.raises(HubError):
                    meter.write()
            meter.note(made, "ann", "t", 1, 1)
            meter.write()
            meter.write()

    asyncio.run(go())
    row = service.row(made)
    assert (row.requests, row.input_tokens, row.output_tokens) == (2, 6, 8)
    assert days(service) == {"ann": (2, 6, 8)}


def test_use_of_one_that_was_deleted_meanwhile_still_counts_for_its_owner(service: Any) -> None:
    made = service.deploy("ann", service.run(), name="a")["id"]

    async def go() -> None:
        async with service.serving() as serving:
            serving.meter.note(made, "ann", "t", 5, 7)
            service.hub.ok("DELETE", f"/deployments/{made}", "ann")
            serving.meter.write()

    asyncio.run(go())
    assert days(service) == {"ann": (1, 5, 7)}
    assert service.row(made).state == "deleted"
