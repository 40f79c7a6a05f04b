"""The commands about users, organisations, members, tokens and the audit log, against a hub in its own process."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from whet.cli.main import main
from whet.hub.client.settings import HubSettings, save_token, write_settings

Capture = pytest.CaptureFixture[str]


def outcome(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a command prints on each stream, when it ends with this code."""
    capsys.readouterr()
    found = main(list(arguments))
    out, err = capsys.readouterr()
    assert found == code, out + err
    return out, err


def answered(capsys: Capture, *arguments: str) -> Any:
    return json.loads(outcome(capsys, *arguments, "--json")[0])


@pytest.fixture
def admin(hub: Any) -> None:
    """The hub's administrator, logged in here."""
    log_in(hub, hub.tokens["hub-admin"])


def log_in(hub: Any, token: str) -> None:
    save_token(hub.address, token)
    write_settings(HubSettings(hub=hub.address))


def test_a_user_is_added_listed_and_removed(
    admin: None, hub: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = outcome(capsys, "hub", "user", "add", "gil")
    hub.tokens["gil"] = out.strip()
    assert out.startswith("whet_")
    assert out.strip() not in err
    assert hub.ok("GET", "/whoami", "gil")["user"] == "gil"
    made = answered(capsys, "hub", "user", "add", "chief", "--admin")
    assert (made["name"], made["is_admin"]) == ("chief", True)
    assert made["token"].startswith("whet_")
    assert "is taken" in outcome(capsys, "hub", "user", "add", "gil", code=2)[1]

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "disable gil" in outcome(capsys, "hub", "user", "remove", "gil", code=1)[1]
    assert hub.ask("GET", "/whoami", "gil").status_code == 200
    assert answered(capsys, "hub", "user", "remove", "gil", "--yes") == {"removed": {"user": "gil"}}
    hub.refused(401, "unauthenticated", "GET", "/whoami", "gil")
    users = {user["name"]: user for user in answered(capsys, "hub", "user", "list")["users"]}
    assert (users["gil"]["disabled"], users["chief"]["disabled"]) == (True, False)
    listed, _ = outcome(capsys, "hub", "user", "list")
    assert "chief" in listed
    assert made["token"] not in listed


def test_members_of_an_organisation_are_set_listed_and_removed(user: str, hub: Any, capsys: Capture) -> None:
    organisation, other = f"team-of-{user}", hub.user(f"friend-of-{user}")
    assert "member set" in outcome(capsys, "hub", "org", "create", organisation)[0]
    assert "is member of" in outcome(capsys, "hub", "member", "set", organisation, other, "member")[0]
    changed = answered(capsys, "hub", "member", "set", organisation, other, "maintainer")
    assert changed == {"user": other, "role": "maintainer"}
    members = answered(capsys, "hub", "member", "list", organisation)["members"]
    assert {one["user"]: one["role"] for one in members} == {user: "owner", other: "maintainer"}
    assert "no member" in outcome(capsys, "hub", "member", "remove", organisation, other)[0]
    assert len(answered(capsys, "hub", "member", "list", organisation)["members"]) == 1
    outcome(capsys, "hub", "member", "remove", organisation, user, code=2)  # the last owner
    assert "king" in outcome(capsys, "hub", "member", "set", organisation, other, "king", code=2)[1]
    assert "no " in outcome(capsys, "hub", "member", "list", "not-there", code=2)[1]


def test_a_token_is_printed_once_and_revoked(user: str, hub: Any, capsys: Capture) -> None:
    out, err = outcome(capsys, "hub", "token", "create", "training machine", "--days", "30")
    token = hub.tokens[f"{user}:machine"] = out.strip()
    assert hub.ok("GET", "/whoami", f"{user}:machine")["scope"] == "read"
    assert "shown only now" in err
    listed = answered(capsys, "hub", "token", "list")["tokens"]
    assert token not in json.dumps(listed)
    [one] = [row for row in listed if row["name"] == "training machine"]
    assert one["id"] in outcome(capsys, "hub", "token", "list")[0]
    outcome(capsys, "hub", "token", "revoke", one["id"])
    hub.refused(401, "unauthenticated", "GET", "/whoami", f"{user}:machine")
    assert one["id"] not in [row["id"] for row in answered(capsys, "hub", "token", "list")["tokens"]]
    assert one["id"] in outcome(capsys, "hub", "token", "revoke", one["id"], code=2)[1]
    assert "366" in outcome(capsys, "hub", "token", "create", "x", "--days", "367", code=2)[1]

    log_in(hub, hub.token(user, "push")["token"])
    assert "admin" in outcome(capsys, "hub", "token", "create", "wider", "--scope", "admin", code=2)[1]


def test_the_audit_log_is_listed_and_verified(admin: None, hub: Any, capsys: Capture) -> None:
    user = hub.user("ivy")
    hub.organisation("ivys", user)
    verified = answered(capsys, "hub", "audit", "verify")
    assert verified["intact"]
    assert "is intact" in outcome(capsys, "hub", "audit", "verify")[0]
    [last] = answered(capsys, "hub", "audit", "list", "-n", "1")["entries"]
    assert (last["number"], last["actor"], last["owner"]) == (verified["entries"], user, "ivys")
    assert "ivys" in outcome(capsys, "hub", "audit", "list")[0]

    log_in(hub, hub.tokens[user])
    own = answered(capsys, "hub", "audit", "list", "--owner", "ivys")["entries"]
    assert [entry["owner"] for entry in own] == ["ivys"]
    assert "administrator" in outcome(capsys, "hub", "audit", "verify", code=2)[1]
    assert "administrator" in outcome(capsys, "hub", "user", "add", "zed", code=2)[1]


def test_a_log_that_was_changed_ends_with_1(tmp_path: Any, open_hub: Any, listening: Any, capsys: Capture) -> None:
    from sqlalchemy import text

    with open_hub() as running, listening(running.app) as address:
        running.user("ann")
        running.user("bob")
        with running.hub.database.write() as session:
            session.execute(text("UPDATE audit SET actor = 'eve' WHERE number = 2"))
        save_token(address, running.tokens["hub-admin"])
        out, _ = outcome(capsys, "hub", "audit", "verify", "--hub", address, code=1)
        assert "entry 2" in out
        broken = main(["hub", "audit", "verify", "--hub", address, "--json"])
        assert (broken, json.loads(capsys.readouterr().out)["first_broken"]) == (1, 2)


@pytest.mark.parametrize("command", [("hub", "user", "remove", "ann"), ("env", "version", "delete", "ann/game@1.0.0")])
def test_nothing_is_asked_before_a_hub_is_named(
    command: tuple[str, ...], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    err = outcome(capsys, *command, code=2)[1]
    assert err.startswith("error: ")
    assert "?" not in err.splitlines()[0]
