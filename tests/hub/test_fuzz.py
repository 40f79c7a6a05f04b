"""Every route with odd input: no answer of 5xx, and never a word of another tenant.

Paths, queries, bodies and headers are drawn from what the routes declare, from what is there, and from what is hostile.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

QUICK, MANY = 700, 20_000
CANARY = "canary of another tenant"  # in all that ann's organisation holds, and in no request
HIDDEN = "hidden-game"


@pytest.fixture
def tenants(hub: Any, packages: Any) -> Any:
    """A tenant with private things that have the canary in them, and another one with public and private ones."""
    hub.organisation("acme", "ann")
    secret = packages.Wheel(name=HIDDEN, code=f"# {CANARY}\n", readme=f"# {CANARY}\n")
    described = packages.metadata(HIDDEN, "1.0.0").replace(b"A game of words", CANARY.encode())
    secret.files[f"{secret.info}/METADATA"] = described
    assert hub.push("ann", "acme", secret, packages.sdist(HIDDEN)).status_code == 201
    for kind in ("secrets", "variables"):
        hub.ok("PUT", f"/environments/acme/{HIDDEN}/{kind}/KEY", "ann", json={"value": CANARY})
    hub.ok("POST", f"/environments/acme/{HIDDEN}/versions/1.0.0/yank", "ann", json={"reason": CANARY})
    hub.ok("POST", "/tokens", "ann", json={"name": CANARY})
    assert hub.push("eve", "eve", packages.Wheel(), packages.sdist(), visibility="PUBLIC").status_code == 201
    assert hub.push("eve", "eve", packages.Wheel(name="own-game")).status_code == 201
    return hub


@pytest.mark.parametrize("count", [QUICK, pytest.param(MANY, marks=pytest.mark.long)])
def test_no_route_fails_or_shows_another_tenants_things(count: int, tenants: Any, packages: Any, fuzzing: Any) -> None:
    hub = tenants
    private = hub.ok("GET", f"/environments/acme/{HIDDEN}/versions/1.0.0", "ann")
    own = hub.ok("GET", "/environments/eve/word-game/versions/1.0.0", "eve")
    push = hub.begin("ann", "acme", packages.Wheel(name=HIDDEN, version="2.0.0")).json()
    mine = hub.begin("eve", "eve", packages.Wheel(version="2.0.0")).json()
    token = hub.ok("GET", "/tokens", "ann")["items"][0]["id"]
    known = {
        "owner": ["acme", "eve", "ann", "bob", "no-one-here"],
        "user": ["ann", "eve", "bob"],
        "name": [HIDDEN, "word-game", "own-game", "new-game"],
        "package": [HIDDEN, HIDDEN.upper(), "word-game", "numpy"],
        "version": ["1.0.0", "2.0.0", "1.0.0rc1"],
        "filename": [file["filename"] for one in (private, own) for file in one["files"]],
        "path": ["hidden_game.py", "word_game.py", "word_game-1.0.0/PKG-INFO"],
        "identity": [private["action"]["id"], own["action"]["id"], push["id"], mine["id"]],
        "token": [token, hub.tokens["eve"], hub.tokens["bob"]],
        "kind": ["wheel", "sdist"],
        "key": ["KEY", "OTHER"],
        "archive": ["wheel", "sdist"],
        "limit": ["1", "200"],
        "cursor": ["0", "1"],
        "search": ["game", "canary", "%"],
        "role": ["viewer", "owner"],
        "scope": ["read", "push", "admin"],
        "visibility": ["PUBLIC", "PRIVATE"],
        "wheel": [{"filename": "new_game-1.0.0-py3-none-any.whl", "size": 3, "sha256": "0" * 64}],  # type: ignore[list-item]
        "days": [1, 30],  # type: ignore[list-item]
        "value": ["text"],
        "code": ["BCDF-GHJK"],
    }  # fmt: skip
    credentials = [{"Authorization": f"Bearer {hub.tokens[name]}"} for name in ("eve", "bob")]
    draw = fuzzing.Draw(7, fuzzing.lasting(fuzzing.routes_of(hub.app)), known, credentials)
    statuses: dict[int, int] = {}
    for number in range(count):
        method, path, more = draw.request(number)
        hub.client.cookies.clear()
        answer = hub.client.request(method, path, follow_redirects=False, **more)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, (number, method, path, more, answer.text)
        assert CANARY not in answer.text, (number, method, path, more)
    assert {200, 201, 204, 401, 403, 404, 422} <= statuses.keys(), statuses
    found = hub.ok("GET", f"/environments/acme/{HIDDEN}/versions/1.0.0", "ann")
    assert {**found, "downloads": 0} == {**private, "downloads": 0}
    assert hub.ok("GET", "/audit/verification", "hub-admin")["intact"] is True
