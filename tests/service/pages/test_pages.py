"""The service's own pages: what a form does is what the API does, with the rights of the page's session."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

ADMIN = "hub-admin"
"""The name of the first administrator."""


class Pages:
    """A user in a browser without scripts."""

    def __init__(self, service: Any, user: str) -> None:
        self.http = service.client
        self.http.cookies.clear()
        answer = self.http.post("/login", data={"token": service.tokens[user], "next": "/runs"}, follow_redirects=False)
        assert answer.status_code == 303, answer.text

    def get(self, path: str, status: int = 200) -> str:
        answer = self.http.get(path)
        assert answer.status_code == status, answer.text
        return str(answer.text)

    def send(self, path: str, status: int = 200, **fields: Any) -> str:
        """Send a form; after a redirect the page that follows."""
        answer = self.http.post(path, data=fields)
        assert answer.status_code == status, answer.text
        return str(answer.text)


@pytest.fixture
def log_in(service: Any) -> Callable[[str], Pages]:
    return lambda user: Pages(service, user)


PAGES = (
    *("/runs", "/evaluations", "/searches", "/environments", "/deployments", "/deployments/new"),
    *("/tokens", "/secrets", "/members", "/webhooks", "/usage", "/audit"),
)


def test_every_page_is_there_and_leads_to_the_login_without_a_session(
    service: Any, log_in: Callable[[str], Pages]
) -> None:
    for path in PAGES:
        if path not in ("/environments",):
            answer = service.client.get(path, follow_redirects=False)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login"), path
    pages = log_in("ann")
    for path in PAGES:
        html = pages.get(path)
        assert "script-src 'self'" in pages.http.get(path).headers["content-security-policy"]
        assert "ann" in html
    for path in ("/runners", "/users"):
        pages.get(path, status=403)
        assert f'href="{path}"' not in pages.get("/tokens")


def test_administrators_see_runners_users_and_the_whole_audit_log(log_in: Callable[[str], Pages]) -> None:
    pages = log_in("hub-admin")
    assert "No runner has started yet" in pages.get("/runners")
    assert "first token of this user" in pages.send("/users", name="dora")
    assert "dora" in pages.get("/users")
    assert "Disable dora?" in pages.get("/users/dora/disable")
    assert "disabled" in pages.send("/users/dora/disable")
    assert "user.disable" in pages.get("/audit")
    assert "The chain is intact" in pages.get("/audit?verified=true")


def test_settings_lead_to_the_first_of_their_pages(service: Any, log_in: Callable[[str], Pages]) -> None:
    pages = log_in("ann")
    assert pages.http.get("/settings").url.path == "/tokens"
    service.client.cookies.clear()
    assert service.client.get("/settings", follow_redirects=False).headers["location"].startswith("/login")


@pytest.mark.parametrize("path", PAGES)
def test_the_link_at_the_top_to_the_part_of_a_page_is_marked(path: str, log_in: Callable[[str], Pages]) -> None:
    top = log_in("ann").get(path).partition('aria-label="Pages"')[2].partition("</nav>")[0]
    (marked,) = re.findall(r'href="([^"]*)"[^>]*aria-current="page"', top)
    of_settings = PAGES.index(path) >= PAGES.index("/tokens")
    assert marked == (
        "/tokens" if of_settings else "/evaluations" if path == "/searches" else path.removesuffix("/new")
    )


def test_a_secret_is_set_and_its_value_shown_nowhere(log_in: Callable[[str], Pages]) -> None:
    pages = log_in("ann")
    html = pages.send("/secrets", owner="ann", name="JUDGE_KEY", value="sk-canary-0001")
    assert "JUDGE_KEY" in html
    for path in PAGES:
        assert "sk-canary-0001" not in pages.get(path)
    assert "cannot be a secret" in pages.send("/secrets", status=422, owner="ann", name="PATH", value="x")
    assert "JUDGE_KEY" not in pages.send("/secrets/delete", owner="ann", name="JUDGE_KEY")


def test_pages_of_another_owner_are_not_there(log_in: Callable[[str], Pages]) -> None:
    pages = log_in("eve")
    for path in (
        "/secrets?owner=ann",
        "/webhooks?owner=ann",
        "/usage?owner=ann",
        "/members?owner=ann",
        "/audit?owner=ann",
    ):
        pages.get(path, status=404)
    pages.send("/secrets", status=404, owner="ann", name="KEY", value="x")


def test_a_token_is_shown_once_and_revoked(service: Any, log_in: Callable[[str], Pages]) -> None:
    pages = log_in("ann")
    html = pages.send("/tokens", name="laptop", scope="read", days="7")
    token = re.search(r">(whet_[^<]+)<", html)
    assert token is not None
    assert token[1] not in pages.get("/tokens")
    service.tokens["laptop"] = unescape(token[1])
    assert service.ok("GET", "/whoami", "laptop")["scope"] == "read"
    revoke = re.search(r'href="(/tokens/[0-9a-f]+/revoke)" aria-label="Revoke laptop"', pages.get("/tokens"))
    assert revoke is not None
    assert "Revoke this token?" in pages.get(revoke[1])
    assert "Revoke laptop" not in pages.send(revoke[1])
    service.refused(401, "unauthenticated", "GET", "/whoami", "laptop")
    assert "days" in pages.send("/tokens", status=422, name="long", days="9999")


def test_members_of_an_organisation(log_in: Callable[[str], Pages]) -> None:
    pages = log_in("ann")
    assert "You are in no organisation" in pages.get("/members")
    assert "Who belongs to lab" in pages.send("/organisations", name="lab")
    assert "bob" in pages.send("/members", owner="lab", user="bob", role="viewer")
    bobs = log_in("bob")
    assert "viewer" in bobs.get("/members?owner=lab")
    bobs.send("/members", status=403, owner="lab", user="bob", role="owner")
    pages = log_in("ann")
    assert "Remove bob" not in pages.send("/members/remove", owner="lab", user="bob")
    assert "owner" in pages.send("/members/remove", status=409, owner="lab", user="ann")


def test_a_queued_run_is_stopped_restarted_and_deleted(service: Any, log_in: Callable[[str], Pages]) -> None:
    run = service.submit("ann")["id"]
    pages = log_in("ann")
    assert "Stop the run?" in pages.get(f"/runs/{run}/stop")
    assert service.ok("GET", f"/runs/{run}", "ann")["state"] == "queued"
    pages.http.post(f"/runs/{run}/stop")
    assert service.ok("GET", f"/runs/{run}", "ann")["state"] == "stopped"
    assert "you may not do this with it" in pages.get(f"/runs/{run}/stop")
    pages.send(f"/runs/{run}/stop", status=409)
    assert "hours:" in pages.send(f"/runs/{run}/restart", status=422, step="", hours="soon")
    pages.http.post(f"/runs/{run}/restart", data={"step": "", "hours": "2", "tokens": "", "cost": "0.5"})
    found = service.ok("GET", f"/runs/{run}", "ann")
    assert (found["state"], found["caps"]) == ("queued", {"seconds": 7200.0, "tokens": None, "cost": 0.5})
    pages.http.post(f"/runs/{run}/delete")
    service.refused(404, "not_found", "GET", f"/runs/{run}", "ann")


def test_each_page_of_a_run_that_has_not_begun_is_shown(service: Any, log_in: Callable[[str], Pages]) -> None:
    run = service.submit("ann")["id"]
    pages = log_in("ann")
    paths = set(re.findall(rf'href="(/runs/{run}/[a-z]+)"', pages.get(f"/runs/{run}")))
    assert {f"/runs/{run}/{name}" for name in ("rollouts", "logs", "checkpoints", "config")} <= paths
    for path in paths:
        pages.get(path)
    assert "No rollouts yet" in pages.get(f"/runs/{run}/rollouts")


def test_runs_of_others_are_left_alone(service: Any, log_in: Callable[[str], Pages]) -> None:
    run = service.submit("ann")["id"]
    pages = log_in("eve")
    for what in ("stop", "restart", "delete"):
        pages.get(f"/runs/{run}/{what}", status=404)
        pages.send(f"/runs/{run}/{what}", status=404)
    assert service.ok("GET", f"/runs/{run}", "ann")["state"] == "queued"


def test_forms_of_other_sites_are_refused(service: Any, log_in: Callable[[str], Pages]) -> None:
    run = service.submit("ann")["id"]
    pages = log_in("ann")
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = pages.http.post(f"/runs/{run}/stop", headers=headers)
        assert answer.status_code == 403
    assert service.ok("GET", f"/runs/{run}", "ann")["state"] == "queued"


def test_limits_are_set_by_administrators_alone(service: Any, log_in: Callable[[str], Pages]) -> None:
    pages = log_in("hub-admin")
    assert "cost this month" not in pages.get(f"/usage?owner={ADMIN}")
    pages.send("/usage", owner=ADMIN, running="", queued="", seconds="", tokens="", cost="5")
    assert "cost this month, of 5" in pages.get(f"/usage?owner={ADMIN}")
    pages.send("/usage", owner=ADMIN, running="2", queued="", seconds="3600", tokens="5000", cost="")
    assert service.ok("GET", f"/usage?owner={ADMIN}", "hub-admin")["quota"] == {
        "running": 2, "queued": None, "seconds": 3600.0, "tokens": 5000, "cost": None,
    }  # fmt: skip
    log_in("ann").send("/usage", status=403, owner="ann", running="99")


def test_a_webhook_shows_its_signing_secret_once(log_in: Callable[[str], Pages]) -> None:
    pages = log_in("ann")
    assert "No webhooks yet" in pages.get("/webhooks")
    refused = pages.send("/webhooks", status=422, owner="ann", url="http://127.0.0.1:1/x", events=["run.finished"])
    assert "127.0.0.1" in refused


def test_without_a_checkpoint_there_is_nothing_to_deploy(service: Any, log_in: Callable[[str], Pages]) -> None:
    run = service.submit("ann")["id"]
    pages = log_in("ann")
    assert "There is nothing to deploy yet" in pages.get("/deployments/new")
    assert "has no checkpoint yet" in pages.get(f"/deployments/new?run={run}")
    assert "has no checkpoint yet" in pages.send("/deployments", status=409, run=run, step="", name="")


def test_pages_of_the_hub_have_the_look_of_the_service(log_in: Callable[[str], Pages]) -> None:
    pages = log_in("ann")
    for path, status in (("/environments", 200), ("/login", 200), ("/device", 200), ("/environments/ann/none", 404)):
        html = pages.get(path, status)
        assert "whet.css" in html
