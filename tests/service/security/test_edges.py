"""Paths that lead elsewhere, forms of other sites, sessions that ended, requests that servers read differently."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

UP = ("..", "%2e%2e", "..%2f..", "%2e%2e%2f", "..%5c..", "%252e%252e%252f", "....//", "/etc/passwd", "%2fetc%2fpasswd",
      "..%00", "~", "C:%5cWindows", "file:%2f%2f%2fetc%2fpasswd")  # fmt: skip
ORIGIN = "http://service.test"


@pytest.fixture
def shared(same_tenants: Any) -> Any:
    same_tenants.service.client.cookies.clear()
    return same_tenants


def login(service: Any, user: str) -> dict[str, str]:
    """Headers of a page's request."""
    service.client.cookies.clear()
    form = {"token": service.tokens[user]}
    answer = service.client.post("/login", data=form, headers={"Origin": ORIGIN}, follow_redirects=False)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie.replace("Strict", "strict")
    service.client.cookies.clear()
    return {"Cookie": cookie.partition(";")[0]}


@pytest.mark.parts
def test_no_path_leads_out_of_the_folders(shared: Any, fuzzing: Any) -> None:
    service = shared.service
    marks = ("root:x:0", "[build-system]", "SQLite format 3", "PRAGMA", "def create_service_app")
    session, token = login(service, "ann"), {"Authorization": f"Bearer {service.tokens['ann']}"}
    mine = {"run": shared.run, "owner": "acme", "name": shared.module.HIDDEN, "version": "1.0.0", "step": "2"}
    tried = 0
    for route in fuzzing.routes_of(service.app):
        names = re.findall(r"\{(\w+)(?::\w+)?\}", route.path)
        if route.method != "GET" or not names or route.path.endswith("/events"):
            continue
        headers = token if route.path.startswith(("/api", "/index", "/files")) else session
        for name in names:
            for text in UP if tried < 400 else UP[:3]:
                values = {**mine, name: text}
                path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found, v=values: v.get(found[1], "1"), route.path)
                if fuzzing.streams(path, [shared.run]):
                    continue
                answer = service.client.get(path, headers=headers, follow_redirects=False)
                assert answer.status_code < 500, path
                assert not any(mark in answer.text for mark in marks), path
                tried += 1
    for text in UP:
        for path in (f"/static/{text}", f"/static/vendor/{text}/app.py", f"/static/{text}/{text}/etc/passwd"):
            answer = service.client.get(path, follow_redirects=False)
            assert answer.status_code in (404, 405, 401, 303, 308), path
            assert not any(mark in answer.text for mark in marks), path
            tried += 1
    assert tried > 300


def test_submitted_files_stay_inside_of_the_submission(shared: Any) -> None:
    service = shared.service
    sha = service.blob("eve", b"x = 1\n")
    for name in (
        "../x.py",
        "/etc/x.py",
        "a/../../x.py",
        "a\\..\\x.py",
        "",
        ".",
        "a//b",
        "config.toml",
        "x\x00.py",
        "~/x",
        "C:/x",
    ):
        answer = service.ask("POST", "/runs", "eve", json=service.body("eve", files={name: sha}))
        assert answer.status_code == 422, (name, answer.text)


def test_a_file_of_the_submission_of_another_user_cannot_be_named_by_its_hash(shared: Any) -> None:
    answer = shared.service.ask("POST", "/runs", "eve", json=shared.service.body("eve", files={"a.py": shared.file}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "refused_config")
    assert shared.module.CANARY not in answer.text


@pytest.mark.parts
def test_forms_and_data_of_another_site_change_nothing(tenants: Any, fuzzing: Any) -> None:
    """Each route that changes something with a session refuses what another site sent."""
    service = tenants.service
    session = login(service, "ann")
    values = {"run": tenants.run, "owner": "acme", "name": "A_KEY", "webhook": tenants.hook, "sha256": "0" * 64}
    values |= {"deployment": tenants.deployment, "identity": tenants.private["action"]["id"]}
    checked = 0
    for route in fuzzing.routes_of(service.app):
        if route.method in ("GET", "HEAD") or route.path.startswith(("/api", "/index", "/files")):
            continue
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: values.get(found[1], "1"), route.path)
        for foreign in ({"Origin": "https://evil.invalid"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
                        {"Origin": ORIGIN + ".evil.invalid"}, {"Sec-Fetch-Site": "same-site"}):  # fmt: skip
            given: dict[str, Any] = {"data": {"token": service.tokens["ann"]}} if route.form else {"json": {}}
            answer = service.client.request(
                route.method, path, headers={**session, **foreign}, follow_redirects=False, **given
            )
            assert answer.status_code in (403, 422), (route.method, path, foreign, answer.status_code)
            checked += answer.status_code == 403
    assert checked > 30
    assert service.ok("GET", f"/runs/{tenants.run}", "ann")["state"] == "failed"
    assert [one["id"] for one in service.ok("GET", "/webhooks?owner=acme", "ann")["items"]] == [tenants.hook]


def test_a_session_is_no_token_and_a_token_no_session(shared: Any) -> None:
    service = shared.service
    session = login(service, "ann")
    name, _, value = session["Cookie"].partition("=")
    assert service.client.get("/data/runs", headers=session).status_code == 200
    assert service.client.get("/api/v1/runs", headers=session).status_code == 401
    assert service.client.get("/api/v1/runs", headers={"Authorization": f"Bearer {value}"}).status_code == 401
    stolen = {"Cookie": f"{name}={service.tokens['ann']}"}
    assert service.client.get("/data/runs", headers=stolen).status_code == 401
    bearer = {"Authorization": f"Bearer {service.tokens['ann']}"}
    assert service.client.get("/data/runs", headers=bearer).status_code == 401


def test_a_session_ends_with_its_token_with_a_logout_and_with_its_user(tenants: Any) -> None:
    service = tenants.service
    made = service.token("max", "push")
    by_token, by_logout = login(service, "max:push"), login(service, "mel")
    gone = login(service, "vic")
    for session in (by_token, by_logout, gone):
        assert service.client.get("/data/runs", headers=session).status_code == 200
    service.ok("DELETE", f"/tokens/{made['id']}", "max")
    form = {**by_logout, "Origin": ORIGIN}
    assert service.client.post("/logout", headers=form, follow_redirects=False).status_code == 303
    service.ok("DELETE", "/users/vic", "hub-admin")
    for session in (by_token, by_logout, gone):
        service.client.cookies.clear()
        assert service.client.get("/data/runs", headers=session).status_code == 401
        service.client.cookies.clear()
        page = service.client.get("/runs", headers=session, follow_redirects=False)
        assert (page.status_code, page.headers["location"][:6]) == (303, "/login")


def test_the_login_leads_to_no_other_site(shared: Any) -> None:
    service = shared.service
    for target in (
        "https://evil.invalid/",
        "//evil.invalid/",
        "/\\evil.invalid",
        "javascript:alert(1)",
        "/\t/evil.invalid",
        "\r\nX: y",
    ):
        service.client.cookies.clear()
        form = {"token": service.tokens["ann"], "next": target}
        answer = service.client.post("/login", data=form, headers={"Origin": ORIGIN}, follow_redirects=False)
        location = answer.headers.get("location", "/")
        assert location.startswith("/"), (target, location)
        assert not location.startswith(("//", "/\\")), (target, location)
        assert "x" not in answer.headers


@pytest.fixture
def address(shared: Any) -> Iterator[tuple[str, int]]:
    with sys.modules["hub_running"].listening(shared.service.app) as found:
        host, _, port = found.removeprefix("http://").partition(":")
        yield host, int(port)


def answers(address: tuple[str, int], request: bytes) -> list[int]:
    """The statuses of all answers on one connection to which these bytes were sent."""
    data = b""
    with socket.create_connection(address, timeout=60) as connection, contextlib.suppress(OSError):
        connection.sendall(request)
        while piece := connection.recv(65536):
            data += piece
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", data)]


HEAD = b"POST /api/v1/device/code HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
FIRST = b"GET /api/v1/health HTTP/1.1\r\nHost: a\r\n\r\n"
SECOND = b"GET /api/v1/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def test_a_request_whose_length_is_ambiguous_is_refused_whole(address: tuple[str, int]) -> None:
    assert answers(address, FIRST + SECOND) == [200, 200]  # two on one connection, as they should be
    for request in (
        HEAD + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + SECOND,
        HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
        HEAD + b"Content-Length: +5\r\n\r\n{}   " + SECOND,
        HEAD + b"Content-Length: 0x2\r\n\r\n{}" + SECOND,
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SECOND,
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SECOND,
        HEAD + b"X: y\r\n folded\r\nContent-Length : 0\r\n\r\n" + SECOND,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nZ\r\n\r\n" + SECOND,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + SECOND,
        HEAD + b"Content-Length: -1\r\n\r\n" + SECOND,
        b"GET /api/v1/health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + SECOND,
        b"GET /api/v1/health HTTP/1.1\r\n\r\n" + SECOND,
        b"GET /api/v1/health HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n" + SECOND,
        b"GET /api/v1/he alth HTTP/1.1\r\nHost: a\r\n\r\n" + SECOND,
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1" + SECOND,
    ):
        statuses = answers(address, request)
        # One answer at most, and that a refusal: what follows is never read as a request of its own.
        assert len(statuses) <= 1, (request, statuses)
        assert all(status in (400, 404, 411, 413, 501) for status in statuses), (request, statuses)


def test_headers_without_end_are_refused(address: tuple[str, int]) -> None:
    statuses = answers(address, b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: " + b"y" * 300_000 + b"\r\n\r\n")
    assert statuses in ([400], [431], [])
    assert answers(address, SECOND) == [200]


def test_audit_chain_is_whole_after_all_of_it(shared: Any, tmp_path: Path) -> None:
    found = shared.service.ok("GET", "/audit/verification", "hub-admin")
    assert (found["intact"], found["first_broken"]) == (True, None)
    assert found["entries"] > 10
