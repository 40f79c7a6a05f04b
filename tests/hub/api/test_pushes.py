"""A push is whole or not there: announced, uploaded in pieces, checked, committed once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")


def stored(hub: Any) -> set[str]:
    return set(hub.hub.store.names())


def test_push_makes_a_version_that_can_be_read(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel(more="Requires-Python: >=3.11\nRequires-Dist: regex>=2024\n")
    answer = hub.push("ann", "ann", wheel, packages.sdist(), visibility="PUBLIC")
    assert answer.status_code == 201, answer.text
    push = answer.json()
    assert push["state"] == "committed"
    version = hub.ok("GET", "/environments/ann/word-game/versions/1.0.0")
    assert version == push["version"]
    assert version["id"] == "ann/word-game@1.0.0"
    assert version["module"] == "word_game"
    assert version["url"] == "http://hub.test/files/ann/word-game/1.0.0/word_game-1.0.0-py3-none-any.whl"
    assert version["requirement"] == f"word-game @ {version['url']}#sha256={version['sha256']}"
    assert version["requires_dist"] == ["regex>=2024"]
    assert version["action"]["state"] == "queued"
    assert [file["kind"] for file in version["files"]] == ["wheel", "sdist"]
    environment = hub.ok("GET", "/environments/ann/word-game")
    assert (environment["visibility"], environment["latest"], environment["summary"]) == (
        "PUBLIC",
        "1.0.0",
        "A game of words",
    )
    assert hub.ask("GET", version["url"].removeprefix("http://hub.test")).content == wheel.bytes()
    assert hub.ok("GET", "/environments/ann/word-game")["downloads"] == 1


def test_same_bytes_again_change_nothing(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    hub.push("ann", "ann", wheel)
    before = hub.ok("GET", "/audit", "hub-admin")["items"]
    again = hub.begin("ann", "ann", wheel)
    assert (again.status_code, again.json()["state"]) == (200, "committed")
    assert again.json()["version"]["id"] == "ann/word-game@1.0.0"
    assert hub.ok("GET", "/audit", "hub-admin")["items"] == before


def test_other_bytes_of_a_version_are_refused(hub: Any, packages: Any) -> None:
    hub.push("ann", "ann", packages.Wheel())
    answer = hub.begin("ann", "ann", packages.Wheel(code="X = 1\n"))
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "version_exists"


def test_interrupted_upload_continues_where_it_ended(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    data = wheel.bytes()
    push = hub.begin("ann", "ann", wheel).json()
    assert hub.upload("ann", push, "wheel", data[:100]).json() == {"offset": 100}
    assert hub.upload("ann", push, "wheel", data[50:], 50).json()["error"]["details"] == [{"offset": 100}]
    again = hub.begin("ann", "ann", wheel)
    assert (again.status_code, again.json()["id"]) == (200, push["id"])
    assert again.json()["files"][0]["offset"] == 100
    assert hub.ask("POST", f"/pushes/{push['id']}/commit", "ann").json()["error"]["code"] == "conflict"
    assert hub.upload("ann", push, "wheel", data[100:], 100).json() == {"offset": len(data)}
    assert hub.ask("POST", f"/pushes/{push['id']}/commit", "ann").status_code == 201
    repeated = hub.ask("POST", f"/pushes/{push['id']}/commit", "ann")
    assert (repeated.status_code, repeated.json()["state"]) == (200, "committed")


def test_more_bytes_than_announced_are_refused(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    push = hub.begin("ann", "ann", wheel).json()
    assert hub.upload("ann", push, "wheel", wheel.bytes() + b"x").status_code == 413
    assert hub.ok("GET", f"/pushes/{push['id']}", "ann")["files"][0]["offset"] == 0


def test_other_bytes_than_announced_are_refused_and_removed(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    push = hub.begin("ann", "ann", wheel).json()
    hub.upload("ann", push, "wheel", bytes(len(wheel.bytes())))
    hub.refused(422, "hash_mismatch", "POST", f"/pushes/{push['id']}/commit", "ann")
    assert hub.ok("GET", f"/pushes/{push['id']}", "ann")["state"] == "refused"
    assert not (hub.hub.uploads / push["id"]).exists()
    assert stored(hub) == set()
    hub.refused(404, "not_found", "GET", "/environments/ann/word-game", "ann")


def test_hostile_wheel_is_refused_with_its_findings(hub: Any, packages: Any) -> None:
    answer = hub.push("ann", "ann", packages.Wheel(files={"evil.pth": b"import os", "json.py": b""}))
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "archive_refused"
    assert {(one["file"], one["code"]) for one in error["details"]} == {("evil.pth", "pth"), ("json.py", "shadows")} | {
        ("evil.pth", "top-level")
    }
    assert stored(hub) == set()
    assert list(hub.hub.uploads.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "json",
        "torch",
        "whet",
        "verifiers",
        "Word-Game",
        "word_game",
        "a--b",
        "9lives",
        "w\u043erd",
        "a" * 65,
        "con sole",
    ],
)
def test_name_that_may_not_be_is_refused(hub: Any, packages: Any, name: str) -> None:
    wheel = packages.Wheel(name=name)
    assert hub.begin("ann", "ann", wheel).status_code in (404, 422)


def test_versions_that_are_not_normal_are_refused(hub: Any, packages: Any) -> None:
    for version in ("1.0.0+local", "v1", "01.0", "1.0-beta", "latest", "1." + "1" * 70):
        answer = hub.begin("ann", "ann", packages.Wheel(version=version))
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid"), version


def test_aborted_push_leaves_nothing(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    push = hub.begin("ann", "ann", wheel).json()
    hub.upload("ann", push, "wheel", wheel.bytes()[:50])
    assert hub.ask("DELETE", f"/pushes/{push['id']}", "ann").status_code == 204
    assert list(hub.hub.uploads.iterdir()) == []
    hub.refused(409, "push_closed", "POST", f"/pushes/{push['id']}/commit", "ann")


def test_push_is_seen_by_its_user_alone(hub: Any, packages: Any) -> None:
    push = hub.begin("ann", "ann", packages.Wheel()).json()
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/commit")):
        hub.refused(404, "not_found", method, f"/pushes/{push['id']}{path}", "bob")
    assert hub.upload("bob", push, "wheel", b"x").status_code == 404


def test_second_commit_of_a_version_with_other_bytes_loses(hub: Any, packages: Any) -> None:
    first, second = packages.Wheel(), packages.Wheel(code="X = 1\n")
    begun = [hub.begin("ann", "ann", wheel).json() for wheel in (first, second)]
    for push, wheel in zip(begun, (first, second), strict=True):
        hub.upload("ann", push, "wheel", wheel.bytes())
    assert hub.ask("POST", f"/pushes/{begun[0]['id']}/commit", "ann").status_code == 201
    hub.refused(409, "version_exists", "POST", f"/pushes/{begun[1]['id']}/commit", "ann")
    assert stored(hub) == {begun[0]["files"][0]["sha256"]}


def test_rights_lost_during_a_push_count_at_its_commit(hub: Any, packages: Any) -> None:
    hub.organisation("acme", "ann", bob="member")
    wheel = packages.Wheel()
    push = hub.begin("bob", "acme", wheel).json()
    hub.upload("bob", push, "wheel", wheel.bytes())
    hub.ok("DELETE", "/owners/acme/members/bob", "ann")
    hub.refused(404, "not_found", "POST", f"/pushes/{push['id']}/commit", "bob")
    assert stored(hub) == set()


def test_expired_push_is_closed_and_removed_at_the_next_start(open_hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    with open_hub() as hub:
        hub.user("ann")
        push = hub.begin("ann", "ann", wheel).json()
        hub.upload("ann", push, "wheel", wheel.bytes())
        hub.ahead = 25 * 3600.0
        hub.refused(409, "push_closed", "POST", f"/pushes/{push['id']}/commit", "ann")
        with hub.hub.database.write() as session:
            from whet.hub.storage.tables import Push

            session.get_one(Push, push["id"]).expires_at = 1.0
    with open_hub() as hub:
        assert list(hub.hub.uploads.iterdir()) == []


def test_expired_push_is_removed_when_the_next_one_begins(hub: Any, packages: Any) -> None:
    wheel = packages.Wheel()
    push = hub.begin("ann", "ann", wheel).json()
    hub.upload("ann", push, "wheel", wheel.bytes()[:9])
    hub.ahead = 25 * 3600.0
    assert hub.begin("bob", "bob", wheel).status_code == 201
    assert list(hub.hub.uploads.iterdir()) == []
    assert hub.ok("GET", f"/pushes/{push['id']}", "ann")["state"] == "expired"


def test_quota_of_an_owner_holds(hub: Any, packages: Any) -> None:
    import dataclasses

    size = len(packages.Wheel().bytes())
    hub.hub.limits = dataclasses.replace(hub.hub.limits, owner_bytes=2 * size - 1)
    assert hub.push("ann", "ann", packages.Wheel()).status_code == 201
    answer = hub.begin("ann", "ann", packages.Wheel(name="other-game"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_full_disk_during_a_commit_changes_nothing(hub: Any, packages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = packages.Wheel()
    push = hub.begin("ann", "ann", wheel).json()
    hub.upload("ann", push, "wheel", wheel.bytes())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        hub.refused(507, "disk_full", "POST", f"/pushes/{push['id']}/commit", "ann")
    hub.refused(404, "not_found", "GET", "/environments/ann/word-game", "ann")
    assert stored(hub) == set()
    assert hub.ask("POST", f"/pushes/{push['id']}/commit", "ann").status_code == 201
