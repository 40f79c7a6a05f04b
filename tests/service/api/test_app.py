"""The application as one: pages need a session, their scripts too, and each error is what its reader understands."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest

pytest.importorskip("fastapi")


def log_in(service: Any, user: str, path: str = "") -> Any:
    """The answer to a login, whose session the client keeps."""
    return service.client.post(
        "/login", data={"token": service.tokens[user], "next": path}, headers=PAGE, follow_redirects=False
    )


PAGE = {"origin": "http://service.test", "sec-fetch-site": "same-origin"}


def page(service: Any, path: str, **more: Any) -> Any:
    return service.client.get(path, follow_redirects=False, **more)


def test_page_leads_to_the_login_and_back(service: Any) -> None:
    assert page(service, "/").headers["location"] == "/runs"
    answer = page(service, "/runs?search=a+b&kind=sft")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/login?next=%2Fruns%3Fsearch%3Da%2Bb%26kind%3Dsft",
    )
    form = page(service, answer.headers["location"]).text
    target = re.search(r'name="next" value="([^"]*)"', form)
    assert target is not None
    back = log_in(service, "ann", target[1].replace("&amp;", "&"))
    assert back.headers["location"] == "/runs?search=a+b&kind=sft"
    assert page(service, "/runs").status_code == 200
    for elsewhere in ("//evil.test/", "https://evil.test/", "/\\evil.test"):
        assert log_in(service, "ann", elsewhere).headers["location"] == "/"


def test_pages_show_a_user_its_own_runs(service: Any) -> None:
    service.submit("ann", name="of-ann")
    service.submit("bob", name="of-bob")
    log_in(service, "ann")
    text = page(service, "/runs").text
    assert "of-ann" in text
    assert "of-bob" not in text
    assert "default-src" in page(service, "/runs").headers["content-security-policy"]


def test_hub_keeps_its_pages(service: Any, packages: Any) -> None:
    assert service.push("ann", "ann", packages.Wheel(), visibility="PUBLIC").status_code == 201
    assert "ann/word-game" in page(service, "/environments").text
    assert "word-game" in page(service, "/environments/ann/word-game").text
    assert page(service, "/static/whet.css").status_code == 200


def test_scripts_of_pages_have_the_session_and_programs_a_token(service: Any) -> None:
    run = service.submit("ann")["id"]
    assert page(service, f"/data/runs/{run}").status_code == 401
    headers = {"Authorization": f"Bearer {service.tokens['ann']}"}
    assert page(service, f"/data/runs/{run}", headers=headers).status_code == 401
    log_in(service, "ann")
    assert page(service, f"/data/runs/{run}").json()["id"] == run
    assert page(service, f"/api/v1/runs/{run}").status_code == 401


def test_change_by_a_page_of_another_site_is_refused(service: Any) -> None:
    run = service.submit("ann")["id"]
    log_in(service, "ann")
    for headers in ({"origin": "http://evil.test"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        answer = service.client.post(f"/data/runs/{run}/stop", headers=headers)
        assert answer.status_code == 403, headers
    assert service.ok("GET", f"/runs/{run}", "ann")["state"] == "queued"
    assert service.client.post(f"/data/runs/{run}/stop", headers=PAGE).json()["state"] == "stopped"


def test_session_ends_with_its_token(service: Any) -> None:
    run = service.submit("ann")["id"]
    made = service.token("ann", "read")
    log_in(service, "ann:read")
    assert service.client.post(f"/data/runs/{run}/stop", headers=PAGE).status_code == 403  # as the token may
    service.ok("DELETE", f"/tokens/{made['id']}", "ann")
    assert page(service, f"/data/runs/{run}").status_code == 401
    assert page(service, "/runs").status_code == 303


def test_paths_without_a_route(service: Any) -> None:
    answer = page(service, "/no/such/page")
    assert (answer.status_code, "text/html" in answer.headers["content-type"]) == (404, True)
    for path in ("/api/v1/none", "/data/none", "/index/none/x"):
        assert page(service, path).json()["error"]["code"] == "not_found"


def test_database_that_is_locked_is_busy_and_a_full_disk_is_said(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.hub.storage.database import Database
    from whet.hub.storage.store import FileStore

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "add", full)
        path = f"/blobs/{hashlib.sha256(b'').hexdigest()}"
        error = service.refused(507, "disk_full", "PUT", path, "ann", content=b"")
        assert "disk is full" in error["message"]
    if service.service.hub.database.url.get_backend_name() == "postgresql":
        return  # there the wait for a lock is a setting of the connection
    other = Database(service.service.hub.database.url.render_as_string(hide_password=False))
    monkeypatch.setattr("whet.hub.storage.database.BUSY_MS", 50)
    with other.write():
        service.service.hub.database.engine.dispose()
        answer = service.ask("POST", "/runs", "ann", json=service.body("ann"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert answer.headers["retry-after"]
    other.close()
    assert service.submit("ann")["state"] == "queued"
