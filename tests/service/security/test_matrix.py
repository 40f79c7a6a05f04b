"""Every route of the service: its action is declared, and each user, scope and role does what it may and no more."""

from __future__ import annotations

import re
from typing import Any

from whet.hub.policy import Action

# What a route without a declared action is: the dashboard's, which get their viewer from the service.
DATA = re.compile(r"/(api/v1|data)/(events|runs|compare)(/.*)?")
PAGES = re.compile(r"/(runs|compare|evaluations|searches)(/.*)?")
OPEN = {"/health", "/device/code", "/device/token", "/environments", "/login", "/device"}
"""Answered without a token; of these only public things are in the answer."""
HOOK = {"owner": "acme", "url": "https://a.example/", "events": ["run.failed"]}
CHANGES: tuple[tuple[str, str, Any, str, str], ...] = (
    # method, path, body, least scope, least role
    ("GET", "/runs/{run}/config", None, "read", "viewer"),
    ("GET", "/runs/{run}", None, "read", "viewer"),
    ("GET", "/usage?owner=acme", None, "read", "viewer"),
    ("GET", "/quotas/acme", None, "read", "viewer"),
    ("GET", "/deployments/{deployment}", None, "read", "viewer"),
    ("POST", "/runs/{run}/restart", {"step": None}, "push", "maintainer"),
    ("POST", "/runs/{run}/stop", None, "push", "maintainer"),
    ("DELETE", "/runs/{run}", None, "push", "maintainer"),
    ("DELETE", "/deployments/{deployment}", None, "push", "maintainer"),
    ("GET", "/secrets?owner=acme", None, "push", "maintainer"),
    ("PUT", "/secrets/acme/A_KEY", {"value": "x" * 9}, "push", "maintainer"),
    ("DELETE", "/secrets/acme/A_KEY", None, "push", "maintainer"),
    ("GET", "/webhooks?owner=acme", None, "push", "maintainer"),
    (
        "POST",
        "/webhooks",
        {"owner": "acme", "url": "https://a.example/", "events": ["run.failed"]},
        "push",
        "maintainer",
    ),
    ("GET", "/webhooks/{webhook}/deliveries", None, "push", "maintainer"),
    ("DELETE", "/webhooks/{webhook}", None, "push", "maintainer"),
)
ROLES = {"viewer": "vic", "member": "mel", "maintainer": "max", "owner": "ann"}


def fill(path: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: values.get(found[1], "x"), path)


def values_of(tenants: Any) -> dict[str, str]:
    """Ids of acme's things."""
    return {
        "owner": "acme", "name": tenants.module.HIDDEN, "version": "1.0.0", "run": tenants.run, "user": "vic",
        "webhook": tenants.hook, "deployment": tenants.deployment, "token": tenants.token, "sha256": tenants.file,
        "identity": tenants.private["action"]["id"], "number": "0", "step": "2", "key": "KEY", "kind": "wheel",
        "package": tenants.module.HIDDEN, "filename": tenants.private["files"][0]["filename"], "path": "hidden_game.py",
    }  # fmt: skip


def test_each_route_declares_its_action_or_is_the_dashboards(same_tenants: Any, fuzzing: Any) -> None:
    routes = fuzzing.routes_of(same_tenants.service.app)
    assert len(routes) > 100
    undeclared = [one for one in routes if not isinstance(getattr(one.endpoint, "hub_action", None), Action)]
    assert [one.path for one in undeclared if not (DATA.fullmatch(one.path) or PAGES.fullmatch(one.path))] == []
    assert {one.method for one in undeclared} == {"GET"}
    names = [f"{one.method} {one.path}" for one in routes]
    for method, path, *_ in CHANGES:
        where = path.partition("?")[0].replace("/acme/A_KEY", "/{owner}/{name}").replace("/acme", "/{owner}")
        assert f"{method} /api/v1{where}" in names, path


def test_without_a_token_no_route_shows_anything_of_a_tenant(same_tenants: Any, fuzzing: Any) -> None:
    tenants = same_tenants
    service, values = tenants.service, values_of(tenants)
    for route in fuzzing.routes_of(service.app):
        service.client.cookies.clear()
        path = fill(route.path, values)
        answer = service.client.request(route.method, path, json={}, follow_redirects=False)
        told = (route.method, path, answer.status_code)
        assert tenants.module.CANARY not in answer.text, told
        below = re.sub(r"^/(api/v1|data)", "", path)
        if answer.status_code < 300:
            assert below in OPEN, told
        elif answer.status_code == 303:
            assert answer.headers["location"].startswith(("/login", "/runs")), told
        else:
            assert answer.status_code in (308, 401, 404, 405, 422, 400), told


def test_of_another_tenant_nothing_can_be_told_from_nothing(same_tenants: Any, fuzzing: Any) -> None:
    """Each route that names a run, a webhook or a deployment answers as for one that does not exist."""
    tenants = same_tenants
    service, values = tenants.service, values_of(tenants)
    none = {"run": "0" * 16, "webhook": "0" * 16, "deployment": "0" * 16}
    checked = 0
    for route in fuzzing.routes_of(service.app):
        named = [name for name in none if f"{{{name}}}" in route.path]
        if not named or not route.path.startswith("/api/v1"):
            continue
        more: dict[str, Any] = {} if route.model is None else {"json": {}}
        answer = service.ask(route.method, fill(route.path, values), "eve", **more)
        missing = service.ask(route.method, fill(route.path, {**values, **none}), "eve", **more)
        assert answer.status_code == missing.status_code in (404, 422), (route.method, route.path, answer.text)
        text = answer.text
        for name in named:
            text = text.replace(values[name], none[name])
        assert text == missing.text, route.path
        checked += answer.status_code == 404
    assert checked >= 10


def test_each_role_and_scope_does_what_it_may_and_no_more(tenants: Any) -> None:
    values, service = values_of(tenants), tenants.service
    scopes, order = ("read", "push", "admin"), list(ROLES)
    for scope in scopes:
        service.token("ann", scope)
    for method, path, body, least, _ in CHANGES:
        for scope in scopes[: scopes.index(least)]:
            error = service.refused(403, "forbidden", method, fill(path, values), f"ann:{scope}", json=body)
            assert f"this token's scope is '{scope}'" in error["message"]
    for method, path, body, _, least in CHANGES:
        for role in order:
            answer = service.ask(method, fill(path, values), ROLES[role], json=body)
            told = (method, path, role, answer.text)
            if order.index(role) >= order.index(least):  # or done already by the role before
                assert answer.status_code < 300 or answer.status_code in (404, 409, 410), told
                assert role != least or answer.status_code != 404, told
            else:
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), told
    service.refused(403, "forbidden", "PUT", "/quotas/acme", "ann", json={})
    service.refused(403, "forbidden", "GET", "/runners", "ann")
    service.refused(404, "not_found", "PUT", "/quotas/no-such-owner", "hub-admin", json={})


def test_revoked_expired_and_unknown_tokens_are_refused_on_every_route(tenants: Any, fuzzing: Any) -> None:
    service, values = tenants.service, values_of(tenants)
    hub, clock = service.service.hub, service.service.hub.clock
    revoked = service.token("ann", "admin")
    service.token("ann", "push", days=1)
    service.client.cookies.clear()
    origin = {"Origin": "http://service.test"}
    login = {"data": {"token": service.tokens["ann:push"]}, "headers": origin, "follow_redirects": False}
    assert service.client.post("/login", **login).status_code == 303
    cookies = [f"{name}={value}" for name, value in service.client.cookies.items()]
    service.client.cookies.clear()
    service.ok("DELETE", f"/tokens/{revoked['id']}", "ann")
    hub.clock = lambda: clock() + 2 * 86_400.0
    tokens = (service.tokens["ann:admin"], service.tokens["ann:push"], "whet_" + "0" * 43)
    for number, route in enumerate(fuzzing.routes_of(service.app)):
        path = fill(route.path, values)
        headers = {"Authorization": f"Bearer {tokens[number % len(tokens)]}"}
        answer = service.client.request(route.method, path, json={}, headers=headers, follow_redirects=False)
        if path.startswith(("/api/v1", "/index", "/files")):
            assert answer.status_code in (401, 404, 422), (route.method, path, answer.status_code)
        assert tenants.module.CANARY not in answer.text
        headers = {"Cookie": cookies[0], **origin}
        answer = service.client.request(route.method, path, json={}, headers=headers, follow_redirects=False)
        assert tenants.module.CANARY not in answer.text, path
        if path.startswith("/data"):
            assert answer.status_code in (401, 404, 422), (route.method, path, answer.status_code)
        service.client.cookies.clear()
