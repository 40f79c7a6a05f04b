"""The service's pages in a real browser: deploy by page, names for screen readers, phones. See `make test-parts`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import load

pytestmark = pytest.mark.parts
PATHS = (
    *("/runs", "/environments", "/deployments", "/deployments/new", "/tokens", "/secrets", "/members", "/users"),
    *("/webhooks", "/usage", "/runners", "/audit?verified=true", "/device"),
)
PICTURES = os.environ.get("WHET_PICTURES", "")
"""A folder for pictures of the pages; none are made where it is empty."""


@pytest.fixture(scope="module")
def browsing() -> Any:
    """See `tests/dashboard/browser.py`."""
    return load(Path(__file__).parents[2] / "dashboard" / "browser.py", "dashboard_browser")


@pytest.fixture(scope="module")
def chromium(browsing: Any) -> Iterator[Any]:
    with browsing.started() as browser:
        yield browser


@pytest.fixture
def database_url() -> None:
    """SQLite alone: what is looked at is the pages."""


def log_in(page: Any, address: str, token: str) -> None:
    page.goto(f"{address}/deployments")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{address}/deployments")


def picture(page: Any, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name.strip('/').replace('/', '-').partition('?')[0]}.png")


def test_a_checkpoint_is_deployed_and_the_deployment_ended(service: Any, browsing: Any, chromium: Any) -> None:
    run = service.run("ann")
    with browsing.served(service.hub.app) as address, browsing.opened(chromium) as page:
        log_in(page, address, service.hub.tokens["ann"])
        page.goto(f"{address}/runs/{run}/checkpoints")
        picture(page, "checkpoints")
        page.get_by_role("link", name="deploy: step 2").click()
        page.get_by_label("Name").fill("mine")
        page.get_by_role("button", name="Deploy").click()
        page.get_by_role("heading", name="whet/tiny:mine").wait_for()
        assert browsing.violations(page) == []
        picture(page, "deployment")
        page.get_by_role("link", name="Delete").click()
        page.get_by_role("button", name="Delete the deployment").click()
        page.get_by_role("heading", name="No deployments yet").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_names_for_screen_readers_and_fit_a_phone(
    service: Any, browsing: Any, chromium: Any, scheme: str
) -> None:
    run = service.run("ann")
    service.hub.ok("POST", "/organisations", "ann", json={"name": "lab"})
    service.hub.ok("PUT", "/secrets/ann/JUDGE_KEY", "ann", json={"value": "x"})
    service.deploy("ann", run, step=2, name="mine")
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    with browsing.served(service.hub.app) as address:
        for user, paths in (("ann", PATHS), ("hub-admin", ("/users", "/runners", "/audit?verified=true", "/usage"))):
            for size in ({}, phone):
                with browsing.opened(chromium, color_scheme=scheme, **size) as page:
                    log_in(page, address, service.hub.tokens[user])
                    own = (f"/runs/{run}/stop", f"/runs/{run}/checkpoints") if user == "ann" else ()
                    for path in (*paths, *own):
                        if user == "ann" and path in ("/users", "/runners"):
                            continue  # for administrators
                        page.goto(address + path)
                        assert browsing.violations(page) == [], path
                        assert browsing.overflow(page) == 0, path
                        picture(page, f"{user}-{scheme}-{'phone' if size else 'wide'}-{path.strip('/')}")
