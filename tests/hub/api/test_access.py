"""Who sees and does what: tokens, roles, visibility, and that nothing of others can be told from nothing at all."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.routing import APIRoute
from sqlalchemy import text, update

from whet.hub.api.app import ROUTERS
from whet.hub.domain.access import digest_of
from whet.hub.policy import Action
from whet.hub.storage.tables import AuditEntry, TokenRow

ENVIRONMENT = "/environments/acme/word-game"
VERSION = f"{ENVIRONMENT}/versions/1.0.0"
READS = (
    ENVIRONMENT,
    f"{ENVIRONMENT}/versions",
    VERSION,
    f"{VERSION}/contents",
    f"{VERSION}/contents/word_game.py",
    f"{VERSION}/readme",
    f"{VERSION}/actions",
    "/files/acme/word-game/1.0.0/word_game-1.0.0-py3-none-any.whl",
    "/files/acme/word-game/1.0.0/word_game-1.0.0-py3-none-any.whl.metadata",
    "/index/acme/simple/word-game/",
)
CHANGES: tuple[tuple[str, str, Any, str, str], ...] = (
    # method, path, body, least scope, least role
    ("PUT", f"{ENVIRONMENT}/variables/LEVEL", {"value": "1"}, "push", "maintainer"),
    ("PUT", f"{ENVIRONMENT}/secrets/API_KEY", {"value": "hush"}, "push", "maintainer"),
    ("GET", f"{ENVIRONMENT}/secrets", None, "push", "maintainer"),
    ("GET", f"{ENVIRONMENT}/variables", None, "push", "maintainer"),
    ("DELETE", f"{ENVIRONMENT}/variables/LEVEL", None, "push", "maintainer"),
    ("DELETE", f"{ENVIRONMENT}/secrets/API_KEY", None, "push", "maintainer"),
    ("POST", f"{VERSION}/yank", {"reason": "wrong"}, "push", "maintainer"),
    ("DELETE", f"{VERSION}/yank", None, "push", "maintainer"),
    ("PATCH", ENVIRONMENT, {"visibility": "PRIVATE"}, "admin", "maintainer"),
    ("GET", "/owners/acme/members", None, "read", "viewer"),
    ("GET", "/owners/acme/audit", None, "admin", "owner"),
    ("PUT", "/owners/acme/members/eve", {"role": "viewer"}, "admin", "owner"),
    ("DELETE", "/owners/acme/members/eve", None, "admin", "owner"),
    ("DELETE", VERSION, None, "admin", "maintainer"),
    ("DELETE", ENVIRONMENT, None, "admin", "owner"),
)
ROLES = ("viewer", "member", "maintainer", "owner")


@pytest.fixture
def acme(hub: Any, packages: Any) -> Any:
    """An organisation with a user for each role, and a private environment."""
    users = {role: hub.user(f"the-{role}") for role in ROLES}
    hub.organisation("acme", users["owner"], **{users[role]: role for role in ROLES[:3]})
    assert hub.push(users["owner"], "acme", packages.Wheel()).status_code == 201
    return hub


def test_each_route_declares_what_it_does() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert len(routes) > 50
    assert [route.path for route in routes if not isinstance(getattr(route.endpoint, "hub_action", None), Action)] == []


def test_private_environment_cannot_be_told_from_none(acme: Any) -> None:
    for user in (None, "eve", "hub-admin"):
        for path in READS:
            answer = acme.ask("GET", path, user)
            missing = acme.ask("GET", path.replace("word-game", "no-game").replace("word_game", "no_game"), user)
            assert answer.status_code == missing.status_code == 404, (user, path, answer.text)
            assert answer.text.replace("word", "no") == missing.text.replace("word", "no")
            assert dict(answer.headers) == {**missing.headers, "content-length": answer.headers["content-length"]}
        listed = acme.ok("GET", "/environments?search=word", user)["items"]
        assert listed == []
        for method, path, body, _, _ in CHANGES:
            if user == "hub-admin" and path.startswith("/owners/"):
                continue
            answer = acme.ask(method, path, user, json=body)
            other = acme.ask(
                method, path.replace("word-game", "no-game").replace("acme", "no-such-owner"), user, json=body
            )
            assert answer.status_code == other.status_code == (401 if user is None else 404), (method, path)


def test_index_of_an_owner_with_nothing_public_is_missing(acme: Any) -> None:
    for path in ("/index/acme/simple/", "/index/acme/all/simple/", "/index/none-such/simple/"):
        assert acme.ask("GET", path).status_code == 404
        assert acme.ask("GET", path, "eve").status_code == 404
    assert "word-game" in acme.ask("GET", "/index/acme/simple/", "the-viewer").text


def test_each_role_does_what_it_may_and_no_more(acme: Any) -> None:
    for method, path, body, _, least in CHANGES:
        for role in ROLES:
            allowed = ROLES.index(role) >= ROLES.index(least)
            if allowed and method == "DELETE" and role != "owner":
                continue  # done once, by the last of them
            if allowed and path == VERSION and method == "DELETE":
                continue
            answer = acme.ask(method, path, f"the-{role}", json=body)
            assert (answer.status_code < 300) == allowed, (method, path, role, answer.text)
            assert allowed or answer.json()["error"]["code"] == "forbidden"
    acme.refused(410, "deleted", "GET", ENVIRONMENT, "the-viewer")


def test_each_scope_does_what_it_may_and_no_more(acme: Any) -> None:
    scopes = ("read", "push", "admin")
    for scope in scopes:
        acme.token("the-owner", scope)
    for method, path, body, least, _ in CHANGES:
        for scope in scopes[: scopes.index(least)]:
            error = acme.refused(403, "forbidden", method, path, f"the-owner:{scope}", json=body)
            assert f"this token's scope is '{scope}'" in error["message"]
    for path in READS:
        assert acme.ask("GET", path, "the-owner:read").status_code == 200
    acme.refused(403, "forbidden", "POST", "/tokens", "the-owner:push", json={"name": "x", "scope": "read"})


def test_members_push_and_viewers_do_not(acme: Any, packages: Any) -> None:
    wheel = packages.Wheel(version="1.1.0")
    assert acme.begin("the-viewer", "acme", wheel).status_code == 403
    assert acme.begin("eve", "acme", wheel).status_code == 404
    assert acme.begin("eve", "no-one", wheel).status_code == 404
    assert acme.push("the-member", "acme", wheel).status_code == 201
    assert acme.begin("the-member", "ann", wheel).status_code == 404
    acme.ok("PATCH", ENVIRONMENT, "the-owner", json={"visibility": "PUBLIC"})
    assert acme.begin("eve", "acme", wheel).status_code == 403
    assert acme.ask("GET", ENVIRONMENT).status_code == 200


def test_expired_revoked_unknown_and_malformed_tokens_are_refused_everywhere(hub: Any, packages: Any) -> None:
    hub.push("ann", "ann", packages.Wheel(), visibility="PUBLIC")
    revoked = hub.token("ann", "read")
    hub.token("ann", "push", days=1)
    hub.ok("DELETE", f"/tokens/{revoked['id']}", "ann")
    hub.ahead = 2 * 86_400.0
    hub.tokens["wrong"] = "whet_" + "A" * 43
    headers = [{"Authorization": value} for value in ("Basic x", "Basic YTpi", "Digest x", "Bearer ", b"Bearer \xff")]
    paths = (
        "/environments",
        "/environments/ann/word-game",
        "/health",
        "/index/ann/simple/",
        "/index/ann/all/simple/pip/",
    )
    for path in paths:
        for user, said in (("ann:read", "was revoked"), ("ann:push", "has expired"), ("wrong", "not known")):
            assert said in hub.refused(401, "unauthenticated", "GET", path, user)["message"]
        for header in headers:
            answer = hub.ask("GET", path, headers=header)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Basic")


def test_tokens_are_stored_as_hashes_only(hub: Any) -> None:
    made = hub.token("ann", "read")
    with hub.hub.database.read() as session:
        row = session.get_one(TokenRow, made["id"])
        assert row.digest == digest_of(made["token"])
        everything = str(session.execute(text("SELECT * FROM tokens")).all())
        everything += str(session.execute(text("SELECT * FROM audit")).all())
    assert made["token"] not in everything
    assert made["token"][5:] not in everything
    assert "token" not in hub.ok("GET", "/tokens", "ann")["items"][-1]


def test_token_is_never_wider_than_the_one_it_is_made_with(hub: Any) -> None:
    hub.token("ann", "admin")
    for user in ("eve", "bob"):
        assert (
            hub.ask("DELETE", f"/tokens/{hub.ok('GET', '/tokens', 'ann')['items'][0]['id']}", user).status_code == 404
        )
    begun = hub.ok("POST", "/device/code", json={"client": "x", "scope": "admin"})
    hub.token("ann", "read")
    hub.ok("POST", "/device/approval", "ann:read", json={"user_code": begun["user_code"], "approve": True})
    assert hub.ok("POST", "/device/token", json={"device_code": begun["device_code"]})["scope"] == "read"


def test_disabled_user_has_no_tokens_left(hub: Any) -> None:
    hub.token("eve", "read")
    hub.ok("DELETE", "/users/eve", "hub-admin")
    for user in ("eve", "eve:read"):
        hub.refused(401, "unauthenticated", "GET", "/whoami", user)
    hub.refused(409, "name_taken", "POST", "/users", "hub-admin", json={"name": "eve"})
    hub.refused(403, "forbidden", "POST", "/users", "ann", json={"name": "new-one"})


@pytest.mark.parametrize(
    "name", ["api", "index", "all", "whet", "A", "a_b", "-a", "a-", "a" * 40, "\u0430cme", "", "a b"]
)
def test_owner_names_that_may_not_be(hub: Any, name: str) -> None:
    hub.refused(422, "invalid", "POST", "/organisations", "ann", json={"name": name})


def test_last_owner_of_an_organisation_cannot_leave(acme: Any) -> None:
    acme.refused(409, "conflict", "DELETE", "/owners/acme/members/the-owner", "the-owner")
    acme.refused(409, "conflict", "PUT", "/owners/acme/members/the-owner", "the-owner", json={"role": "viewer"})
    acme.ok("PUT", "/owners/acme/members/bob", "hub-admin", json={"role": "owner"})
    assert acme.ask("DELETE", "/owners/acme/members/the-owner", "bob").status_code == 204
    acme.refused(404, "not_found", "GET", ENVIRONMENT, "the-owner")


def test_secret_is_encrypted_bound_to_its_row_and_never_returned(acme: Any) -> None:
    acme.ok("PUT", f"{ENVIRONMENT}/secrets/API_KEY", "the-owner", json={"value": "correct-horse"})
    assert "correct-horse" not in acme.ask("GET", f"{ENVIRONMENT}/secrets", "the-owner").text
    files = [path for path in acme.hub.uploads.parent.rglob("*") if path.is_file()]
    assert not any(b"correct-horse" in path.read_bytes() for path in files)
    from whet.hub.domain.environments import secret_values
    from whet.hub.storage.tables import EnvironmentRow, Secret

    with acme.hub.database.read() as session:
        environment = session.query(EnvironmentRow).one()
        assert secret_values(acme.hub, session, environment) == ["correct-horse"]
        session.execute(update(Secret).values(name="OTHER"))
        session.expire_all()
        assert secret_values(acme.hub, session, environment) == []


def test_audit_log_shows_a_change_of_itself(acme: Any) -> None:
    actions = [entry["action"] for entry in acme.ok("GET", "/audit?limit=200", "hub-admin")["items"]]
    assert actions[0] == "user.create"
    assert {"organisation.create", "member.set", "version.push", "token.create"} <= set(actions)
    assert acme.ok("GET", "/audit/verification", "hub-admin") == {
        "intact": True,
        "entries": len(actions),
        "first_broken": None,
    }
    changes = (
        update(AuditEntry).where(AuditEntry.number == 3).values(actor="eve"),
        AuditEntry.__table__.delete().where(AuditEntry.number == 5),
        AuditEntry.__table__.delete().where(AuditEntry.number == len(actions)),
    )
    from whet.hub.domain import audit

    for change, broken in zip(changes, (3, 5, len(actions)), strict=True):
        with acme.hub.database.read() as session:
            session.execute(change)
            assert audit.verify(session)[1] == broken


def test_deleted_names_are_never_given_out_again(acme: Any, packages: Any) -> None:
    acme.push("the-owner", "acme", packages.Wheel(version="2.0.0", code="X = 1\n"))
    assert acme.ask("DELETE", VERSION, "the-owner").status_code == 204
    acme.refused(410, "deleted", "GET", VERSION, "the-viewer")
    assert acme.begin("the-owner", "acme", packages.Wheel()).json()["error"]["code"] == "version_deleted"
    assert len(acme.hub.store.names()) == 1
    assert acme.ask("DELETE", ENVIRONMENT, "the-owner").status_code == 204
    assert acme.hub.store.names() == set()
    answer = acme.begin("the-owner", "acme", packages.Wheel(version="3.0.0"))
    assert answer.json()["error"]["code"] == "environment_deleted"


def test_bytes_that_two_versions_share_are_kept_until_the_last(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    for owner in ("ann", "bob"):
        assert hub.push(owner, owner, wheel).status_code == 201
    assert len(hub.hub.store.names()) == 1
    hub.ok("DELETE", "/environments/ann/word-game", "ann")
    path = "/files/bob/word-game/1.0.0/word_game-1.0.0-py3-none-any.whl"
    assert hub.ask("GET", path, "bob").content == wheel.bytes()
    hub.ok("DELETE", "/environments/bob/word-game", "bob")
    assert hub.hub.store.names() == set()


def test_search_finds_what_the_caller_may_see(acme: Any, packages: Any) -> None:
    acme.push("ann", "ann", packages.Wheel(name="sum-game"), visibility="PUBLIC")
    for user, expected in ((None, ["ann/sum-game"]), ("the-viewer", ["acme/word-game", "ann/sum-game"])):
        for query in ("search=game", "search=GAME+words", "search=", "limit=200"):
            assert [item["id"] for item in acme.ok("GET", f"/environments?{query}", user)["items"]] == expected
    assert acme.ok("GET", "/environments?search=%25", "the-viewer")["items"] == []
    assert acme.ok("GET", "/environments?owner=acme", "ann")["items"] == []
    first = acme.ok("GET", "/environments?limit=1", "the-viewer")
    second = acme.ok("GET", f"/environments?limit=1&cursor={first['next']}", "the-viewer")
    assert (second["items"][0]["id"], second["next"]) == ("ann/sum-game", None)
