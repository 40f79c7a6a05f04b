"""Joining routes and pages: errors as JSON or a page, headers of every answer."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from .conftest import Browser, Runs


def test_runs_page_lists_runs_and_escapes_their_names(runs: Runs, browser: Browser) -> None:
    runs.training("<img src=x onerror=alert(1)>")
    page = browser.http.get("/")
    assert page.url.path == "/runs"
    assert "&lt;img src=x onerror=alert(1)&gt;" in page.text
    assert "<img" not in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/runs/none-12345678", 404, "not_found"),
        ("/runs/..%2f..%2fetc", 404, "not_found"),
        ("/nothing", 404, "not_found"),
        ("/runs?limit=0", 422, "invalid"),
        ("/runs?cursor=x", 422, "invalid"),
    ],
)
def test_errors_of_data_are_json(browser: Browser, path: str, status: int, code: str) -> None:
    for prefix in ("/api/v1", "/data"):
        answer = browser.http.get(prefix + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers["content-security-policy"].endswith("sandbox")


def test_errors_of_pages_are_pages(browser: Browser) -> None:
    for path, status in (("/nothing", 404), ("/runs?cursor=x", 422)):
        answer = browser.http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert f'<span class="muted">{status}</span></h1>' in answer.text
    assert browser.http.post("/runs").status_code == 405


def test_static_files_are_cached_by_their_content(browser: Browser) -> None:
    page = browser.http.get("/runs").text
    url = page.partition('href="/static/')[2].partition('"')[0]
    style = browser.http.get(f"/static/{url}")
    assert (style.status_code, style.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
    assert style.headers["x-content-type-options"] == "nosniff"
    assert browser.http.get("/static/..%2fapp.py").status_code == 404


def test_fault_of_the_server_is_a_page_or_json(browser: Browser) -> None:
    app: Any = browser.http.app

    def fail() -> None:
        raise ZeroDivisionError("secret")

    for path in ("/broken", "/api/v1/broken"):
        app.add_api_route(path, fail)
    with TestClient(app, raise_server_exceptions=False) as http:
        page, data = http.get("/broken"), http.get("/api/v1/broken")
    assert (page.status_code, data.status_code, data.json()["error"]["code"]) == (500, 500, "internal_error")
    assert '<span class="muted">500</span></h1>' in page.text
    for answer in (page, data):
        assert "secret" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
