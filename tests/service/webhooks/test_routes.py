"""Routes of webhooks: who may, and what is shown."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from whet.hub.opening import open_hub
from whet.hub.storage.database import migrate
from whet.service.api import webhooks
from whet.service.storage.tables import SERVICE_SCHEMA
from whet.service.webhooks.hooks import MOST

URL = "https://hooks.example.com/T0KEN-in-the-path"
BODY = {"owner": "acme", "url": URL, "events": ["run.finished", "run.failed"]}


def running() -> Any:
    name = "hub_running"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "hub" / "running.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].Running


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Any]:
    """A hub with the routes of webhooks, an organisation with a user of each role, and one user apart from it."""
    with open_hub(tmp_path / "hub") as (hub, token):
        migrate(hub.database, SERVICE_SCHEMA)
        found = running()(hub, token)
        found.app.include_router(webhooks.router, prefix="/api/v1")
        for user in ("ann", "max", "mel", "vic", "eve"):
            found.user(user)
        found.organisation("acme", "ann", max="maintainer", mel="member", vic="viewer")
        yield found


def test_the_signing_secret_is_shown_once(team: Any) -> None:
    made = team.ok("POST", "/webhooks", "max", json=BODY)
    assert made["secret"].startswith("whsec_")
    assert made["events"] == ["run.failed", "run.finished"]
    listed = team.ask("GET", "/webhooks?owner=acme", "ann")
    assert listed.json()["items"] == [{name: value for name, value in made.items() if name != "secret"}]
    assert made["secret"] not in listed.text
    assert team.ok("GET", f"/webhooks/{made['id']}/deliveries", "max") == {"items": [], "next": None}
    audit = team.ask("GET", "/owners/acme/audit", "ann").text
    assert "webhook.create" in audit
    assert made["secret"] not in audit
    assert "T0KEN" not in audit
    team.ok("DELETE", f"/webhooks/{made['id']}", "max")
    assert team.ok("GET", "/webhooks?owner=acme", "max")["items"] == []
    team.refused(404, "not_found", "DELETE", f"/webhooks/{made['id']}", "max")
    stored = b"".join(path.read_bytes() for path in team.hub.uploads.parent.rglob("*") if path.is_file())
    assert made["secret"].encode() not in stored


@pytest.mark.parametrize(
    ("user", "status", "code"),
    [
        ("mel", 403, "forbidden"),
        ("vic", 403, "forbidden"),
        ("eve", 404, "not_found"),
        ("hub-admin", 404, "not_found"),
        (None, 401, "unauthenticated"),
    ],
)
def test_who_may_not_manage_webhooks(user: str | None, status: int, code: str, team: Any) -> None:
    made = team.ok("POST", "/webhooks", "max", json=BODY)
    for method, path, more in (
        ("GET", "/webhooks?owner=acme", {}),
        ("POST", "/webhooks", {"json": BODY}),
        ("GET", f"/webhooks/{made['id']}/deliveries", {}),
        ("DELETE", f"/webhooks/{made['id']}", {}),
    ):
        team.refused(status, code, method, path, user, **more)
    if user == "eve":  # what exists cannot be told from what does not
        theirs, none = (
            team.ask("GET", f"/webhooks/{identity}/deliveries", user).text for identity in (made["id"], "0" * 16)
        )
        assert theirs.replace(made["id"], "0" * 16) == none


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://127.0.0.1:9000/"},
        {"url": "http://[::1]/"},
        {"url": "https://user:pw@example.com/"},
        {"url": "x"},
        {"events": []},
        {"events": ["run.exploded"]},
        {"owner": "../acme"},
        {"secret": "mine"},
    ],
)
def test_a_webhook_that_is_none_is_refused(change: dict[str, Any], team: Any) -> None:
    team.refused(422, "invalid", "POST", "/webhooks", "max", json={**BODY, **change})


def test_an_owner_has_a_limited_number_of_webhooks(team: Any) -> None:
    for number in range(MOST):
        team.ok("POST", "/webhooks", "max", json={**BODY, "url": f"{URL}/{number}"})
    assert "Delete some first" in team.refused(429, "too_many", "POST", "/webhooks", "max", json=BODY)["message"]
