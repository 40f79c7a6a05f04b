"""A pushed version is tried in a sandbox; what it says is kept as evidence."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from whet.hub.domain import actions
from whet.hub.worker import Worker


def state(hub: Any) -> dict[str, Any]:
    found: dict[str, Any] = hub.ok("GET", "/environments/ann/word-game/versions/1.0.0/actions", "ann")["items"][-1]
    return found


@pytest.mark.usefixtures("bubblewrap")
def test_good_version_passes_and_its_log_is_kept_without_secrets(hub: Any, packages: Any) -> None:
    files = {f"tests/test_{name}.py": b"" for name in ("rewards", "tasks")} | {"tests/deep/test_x.py": b""}
    hub.push("ann", "ann", packages.Wheel(), packages.sdist(files=files))
    hub.ok("PUT", "/environments/ann/word-game/secrets/API_KEY", "ann", json={"value": "SingleTurnEnv"})
    assert Worker(hub.hub).try_next()
    found = state(hub)
    log = hub.ask("GET", f"/actions/{found['id']}/log", "ann")
    assert found["state"] == "passed", log.text
    assert found["attempt"] == 1
    assert "0 errors" in found["summary"]
    assert "loaded    [redacted-by-whet] with" in log.text
    assert "no-tests" not in log.text
    assert str(hub.hub.uploads.parent) not in log.text
    assert hub.ok("GET", "/environments/ann/word-game/versions/1.0.0", "ann")["action"]["state"] == "passed"
    assert not Worker(hub.hub).try_next()
    assert list((hub.hub.uploads.parent / "trials").iterdir()) == []


@pytest.mark.usefixtures("bubblewrap")
def test_version_that_reads_the_hub_or_fails_to_import_does_not_pass(hub: Any, packages: Any) -> None:
    key = hub.hub.uploads.parent / "secrets.key"
    code = f"print(open({str(key)!r}, 'rb').read())\n"
    hub.push("ann", "ann", packages.Wheel(code=code))
    assert Worker(hub.hub).try_next()
    assert state(hub)["state"] == "failed"
    log = hub.ask("GET", f"/actions/{state(hub)['id']}/log", "ann").text
    assert "import-fails" in log
    assert "No such file" in log


def test_running_action_of_a_killed_server_is_queued_again_three_times(open_hub: Any, packages: Any) -> None:
    with open_hub() as hub:
        hub.user("ann")
        hub.push("ann", "ann", packages.Wheel())
        tokens = hub.tokens
    for attempt in (1, 2, 3):
        with open_hub() as hub:
            hub.tokens = tokens
            assert state(hub)["state"] == "queued"
            row = actions.claim(hub.hub, "a server that is killed")
            assert row is not None
            assert row.attempt == attempt
    with open_hub() as hub:
        hub.tokens = tokens
        assert state(hub)["state"] == "failed"
        assert "3 times" in state(hub)["summary"]
        assert not Worker(hub.hub).try_next()


def test_end_of_an_action_counts_only_for_the_worker_that_has_it(hub: Any, packages: Any) -> None:
    hub.push("ann", "ann", packages.Wheel())
    row = actions.claim(hub.hub, "first")
    assert row is not None
    actions.finish(hub.hub, row.id, "second", True, "fine", "")
    assert state(hub)["state"] == "running"
    actions.finish(hub.hub, row.id, "first", False, "not fine", "log")
    assert state(hub)["state"] == "failed"


def test_retry_queues_another_action_and_not_two(hub: Any, packages: Any) -> None:
    hub.push("ann", "ann", packages.Wheel(), visibility="PUBLIC")
    identity = state(hub)["id"]
    hub.refused(409, "conflict", "POST", f"/actions/{identity}/retry", "ann")
    row = actions.claim(hub.hub, "w")
    assert row is not None
    actions.finish(hub.hub, row.id, "w", False, "", "")
    hub.refused(403, "forbidden", "POST", f"/actions/{identity}/retry", "eve")
    hub.refused(401, "unauthenticated", "POST", f"/actions/{identity}/retry")
    again = hub.ok("POST", f"/actions/{identity}/retry", "ann")
    assert (again["state"], again["id"] == identity) == ("queued", False)
    hub.refused(409, "conflict", "POST", f"/actions/{identity}/retry", "ann")
