"""Secrets, usage, quotas and runners by HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from sqlalchemy import select

from whet.hub.storage.database import database_now
from whet.service.domain import queue, runners
from whet.service.domain.secrets import secrets_of_run
from whet.service.storage.tables import OwnerSecret, RunRow, RunSecret

CANARY = "canary-9f3a7c1e55"


def test_secrets_are_set_listed_by_name_and_deleted(service: Any) -> None:
    assert service.ok("PUT", "/secrets/ann/API_KEY", "ann", json={"value": CANARY})["name"] == "API_KEY"
    listed = service.ask("GET", "/secrets?owner=ann", "ann")
    assert [one["name"] for one in listed.json()["items"]] == ["API_KEY"]
    assert CANARY not in listed.text
    service.refused(404, "not_found", "GET", "/secrets?owner=ann", "bob")
    service.refused(404, "not_found", "PUT", "/secrets/ann/API_KEY", "bob", json={"value": "x"})
    service.refused(422, "invalid", "PUT", "/secrets/ann/LD_PRELOAD", "ann", json={"value": "x"})
    service.refused(422, "invalid", "PUT", "/secrets/ann/API_KEY", "ann", json={"value": "\0"})
    service.refused(422, "invalid", "PUT", "/secrets/ann/API_KEY", "ann", content=b'{"value": "\\ud800"}')
    assert service.ask("DELETE", "/secrets/ann/API_KEY", "ann").status_code == 204
    service.refused(404, "not_found", "DELETE", "/secrets/ann/API_KEY", "ann")


def test_members_use_the_secrets_of_an_organisation_and_maintainers_change_them(service: Any) -> None:
    service.organisation("lab", "ann", bob="member", eve="maintainer")
    service.refused(403, "forbidden", "GET", "/secrets?owner=lab", "bob")
    service.ok("PUT", "/secrets/lab/SHARED", "eve", json={"value": CANARY})
    run = service.submit("bob", "lab", secrets={"OWN": "value of the run", "SHARED": "over it"})["id"]
    found = service.service
    with found.hub.database.read() as session:
        row = session.get_one(RunRow, run)
        assert secrets_of_run(session, found.hub.cipher, row) == {"OWN": "value of the run", "SHARED": "over it"}
        other = RunRow(id="other", owner="lab", user="bob")
        assert secrets_of_run(session, found.hub.cipher, other) == {"SHARED": CANARY}
        stored = [*session.scalars(select(OwnerSecret.value)), *session.scalars(select(RunSecret.value))]
        assert not any(CANARY.encode() in value for value in stored)


def test_runs_of_who_is_no_member_any_more_are_given_no_secrets_of_the_organisation(service: Any) -> None:
    service.organisation("lab", "ann", bob="member", eve="member")
    service.ok("PUT", "/secrets/lab/SHARED", "ann", json={"value": CANARY})
    runs = {user: service.submit(user, "lab", secrets={"OWN": "of the run"})["id"] for user in ("ann", "bob", "eve")}

    def given(user: str) -> set[str]:
        with service.service.hub.database.read() as session:
            row = session.get_one(RunRow, runs[user])
            return set(secrets_of_run(session, service.service.hub.cipher, row))

    assert given("ann") == given("bob") == given("eve") == {"OWN", "SHARED"}
    service.ok("DELETE", "/owners/lab/members/bob", "ann")
    service.ok("PUT", "/owners/lab/members/eve", "ann", json={"role": "viewer"})
    assert given("bob") == given("eve") == {"OWN"}
    assert given("ann") == {"OWN", "SHARED"}


def test_the_guide_says_who_can_read_secrets_of_an_organisation() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "service.md").read_text(encoding="utf-8")
    assert "each user who may submit runs can read the organisation's secrets" in " ".join(guide.split())


def test_values_of_secrets_are_nowhere_but_in_their_rows(service: Any) -> None:
    service.ok("PUT", "/secrets/ann/A", "ann", json={"value": CANARY})
    run = service.submit("ann", secrets={"B": CANARY})["id"]
    for path in (f"/runs/{run}", "/runs", "/secrets?owner=ann", "/usage?owner=ann", "/owners/ann/audit"):
        assert CANARY not in service.ask("GET", path, "ann").text
    assert CANARY not in service.ask("GET", "/audit", "hub-admin").text
    holding = [
        path for path in service.service.data.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert holding == []


def test_administrator_sets_quotas_and_submissions_over_them_are_402(service: Any) -> None:
    limits = {"running": None, "queued": 1, "seconds": None, "tokens": None, "cost": None}
    service.refused(403, "forbidden", "PUT", "/quotas/ann", "ann", json=limits)
    assert service.ok("PUT", "/quotas/ann", "hub-admin", json=limits) == limits
    assert service.ok("GET", "/quotas/ann", "ann") == limits
    service.refused(404, "not_found", "GET", "/quotas/ann", "bob")
    service.submit("ann")
    error = service.refused(402, "over_quota", "POST", "/runs", "ann", json=service.body("ann"))
    assert "as many as it may" in error["message"]
    service.ok("PUT", "/quotas/ann", "hub-admin", json={**limits, "queued": None, "cost": 0.0})
    assert "month" in service.refused(402, "over_quota", "POST", "/runs", "ann", json=service.body("ann"))["message"]


def test_usage_and_runners_and_what_the_service_has(service: Any) -> None:
    about = service.ok("GET", "/service", "ann")
    assert "whet/tiny" in about["models"]
    assert "reverse-text" in [one["id"] for one in about["environments"]]
    assert about["largest"] is None
    run = service.submit("ann", needs={"cores": 2})["id"]
    with service.service.hub.database.write() as session:
        now = database_now(session)
        identity = {"host": "box", "boot_id": "1", "pid": 1, "process_began": "1", "version": "0"}
        capacity = {"cores": 4, "memory": 1 << 33, "core_hour_price": 3600.0}
        runner = runners.announce(session, now, capacity=capacity, **identity)
        claim = queue.claim(session, runner, now)
        assert claim is not None
        assert queue.renew(session, claim.held, now + 10, tokens=70) is not None
    used = service.ok("GET", "/usage?owner=ann", "ann")
    assert used["month"] == {"seconds": 10.0, "tokens": 70, "cost": pytest.approx(20.0)}
    assert sum(day["tokens"] for day in used["days"]) == 70
    service.refused(404, "not_found", "GET", "/usage?owner=ann", "bob")
    assert service.ok("GET", f"/runs/{run}", "ann")["cost"] == pytest.approx(20.0)
    service.refused(403, "forbidden", "GET", "/runners", "ann")
    [found] = service.ok("GET", "/runners", "hub-admin")["items"]
    assert (found["host"], found["state"], found["free"]["cores"]) == ("box", "alive", 2.0)
    assert service.ok("GET", "/service", "ann")["largest"]["cores"] == 4.0
