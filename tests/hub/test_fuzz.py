"""Every route with odd input: no answer of 5xx, and never a word of another tenant.

Paths, queries, bodies and headers are drawn from what the routes declare, from what is there, and from what is hostile.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.routing import APIRoute

from whet.hub.api.app import ROUTERS

QUICK, MANY = 700, 20_000
CANARY = "canary of another tenant"  # in all that ann's organisation holds, and in no request
HIDDEN = "hidden-game"
ODD: tuple[Any, ...] = (
    "", "a", "..", ".", "%00", "\x00", "%2e%2e%2f", "a/b", "\u0430", "\U0001f600", "\ud800", "a" * 300, "-", "--", "'",
    '"', "%", "'; DROP TABLE accounts; --", "<script>", "1.0.0", "1e400", "-1", "99999999999999999999", "null",
    "\r\nX: y", "{}", "[]",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *ODD,
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    [],
    {},
    [[]] * 3,
    {"a": {"b": []}},
    "\x00",
    "\u202e",
    "x" * 5000,
)


class Draw:
    """Requests, drawn from a seed."""

    def __init__(self, seed: int, known: dict[str, list[str]], tokens: dict[str, str]) -> None:
        self.rng = random.Random(seed)
        self.known = known
        self.tokens = tokens
        self.routes = [
            (method, route)
            for router in ROUTERS
            for route in router.routes
            if isinstance(route, APIRoute)
            for method in sorted(route.methods)
        ]

    def value(self, name: str) -> Any:
        kind = self.rng.random()
        if kind < 0.7 and name in self.known:
            return self.rng.choice(self.known[name])
        return self.rng.choice(VALUES)

    def segment(self, name: str) -> str:
        value = self.value(name)
        text = value if isinstance(value, str) else json.dumps(value)
        return re.sub(
            r"[^A-Za-z0-9._~%!+-]",
            lambda found: "".join(f"%{b:02X}" for b in found[0].encode("utf-8", "surrogatepass")),
            text,
        )

    def request(self, number: int) -> tuple[str, str, dict[str, Any]]:
        method, route = self.routes[number % len(self.routes)]
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: self.segment(found[1]) or "x", route.path)
        more: dict[str, Any] = {"headers": self.headers()}
        names = ("owner", "search", "limit", "cursor", "archive", "offset", "code", "next")
        if self.rng.random() < 0.3:
            name = self.rng.choice(names)
            path += f"?{name}={self.segment(name)}"
        if route.body_field is not None:
            more |= self.body(route)
        elif method == "PATCH":
            more["content"] = self.rng.randbytes(self.rng.choice((0, 1, 100)))
        if self.rng.random() < 0.02:
            method = self.rng.choice(("PUT", "OPTIONS", "TRACE", "FOO"))
        return method, path, more

    def body(self, route: APIRoute) -> dict[str, Any]:
        roll = self.rng.random()
        if roll < 0.05:
            return {"content": self.rng.choice((b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"a": NaN}', b'"\\ud800"'))}
        assert route.body_field is not None
        model = getattr(route.body_field.field_info, "annotation", None)
        fields = list(getattr(model, "model_fields", {})) or ["token", "next", "code", "decision"]
        found = {name: self.value(name) for name in fields if self.rng.random() < 0.9}
        if roll < 0.15:
            found["unknown"] = 1
        if not hasattr(model, "model_fields"):
            return {"data": {name: str(value).encode("utf-8", "replace").decode() for name, value in found.items()}}
        return {
            "content": json.dumps(found).encode(),
            "headers": {**self.headers(), "Content-Type": "application/json"},
        }

    def headers(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        token = self.rng.choice([*self.tokens.values(), None, None, "whet_wrong"])
        if token is not None:
            found["Authorization"] = f"Bearer {token}"
        if self.rng.random() < 0.2:
            found["Upload-Offset"] = self.rng.choice(("0", "1", "-1", "x", "9" * 30))
        for name in (
            "Accept",
            "If-None-Match",
            "Range",
            "Cookie",
            "Origin",
            "Accept-Encoding",
            "Host",
            "X-Forwarded-For",
        ):
            if self.rng.random() < 0.05:
                text = self.rng.choice(
                    ("", "*", "bytes=9-1", "bytes=0-0,-1", "whet_hub_session=x", "text/html;q=9e9", "[", "a b")
                )
                found[name] = text
        return found


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
def test_no_route_fails_or_shows_another_tenants_things(count: int, tenants: Any, packages: Any) -> None:
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
    draw = Draw(7, known, {name: hub.tokens[name] for name in ("eve", "bob")})
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
