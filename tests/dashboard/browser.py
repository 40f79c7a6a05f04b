"""A real browser for tests of pages: Chromium with Playwright, as `scripts/browser.py` found or fetched it.

    def test_...(page: Page, address: str) -> None:     # both fixtures are in conftest.py
        page.goto(f"{address}/runs")

A test that uses `page` fails where the page wrote an error or a warning to its console, raised in a script, or broke
its content security policy. `problems(page)` are those so far; `allow(page, words)` takes out what a test provokes.

Nothing of a page is there at once, and a click returns before the page that it leads to. So a test waits for what it
expects: `expect(locator)` and `page.wait_for_...`, both for a minute; `expect_query(page, ...)` for the address;
`with page.expect_navigation()` around what leads to another page, before its keys are pressed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from whet.gateway.serve import listen

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RECORD = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whet" / "browser" / "browser.json"
WATCH = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""
LONGEST_MS = 60_000
_problems: dict[Any, list[str]] = {}


def record() -> dict[str, Any]:
    """What `scripts/browser.py` found. Skips the test where that is nothing."""
    pytest.importorskip("playwright", reason="there is no browser here: playwright is not installed")
    try:
        found: dict[str, Any] = json.loads(RECORD.read_text())
    except FileNotFoundError:
        pytest.skip("there is no browser here: `make test-parts` finds or fetches one")
    return found


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser. While it is open, this thread counts as one with an event loop: close it before others need theirs."""
    from playwright.sync_api import sync_playwright

    known = record()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=known["executable"], env={**os.environ, **known["environment"]}, args=["--no-sandbox"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a profile of its own; at the end it is checked that nothing went wrong in it."""
    wanted = {"locale": "en-US", "viewport": {"width": 1280, "height": 860}, "color_scheme": "light", **options}
    context = browser.new_context(**wanted)
    try:
        context.add_init_script(WATCH)
        page = context.new_page()
        page.set_default_timeout(LONGEST_MS)
        found = _problems[page] = []
        page.on("console", lambda m: found.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: found.append(f"uncaught: {error}"))
        yield page
        page.evaluate("1")  # what the page said before this has arrived with the answer
        assert not found, found
    finally:
        context.close()
        _problems.clear()


def problems(page: Page) -> list[str]:
    return _problems[page]


def allow(page: Page, words: str) -> None:
    """Take out problems with these words, of which there has to be one."""
    found = _problems[page]
    left = [one for one in found if words not in one]
    assert len(left) < len(found), found
    found[:] = left


def expect(what: Any) -> Any:
    """Playwright's assertions, which wait until they hold."""
    from playwright.sync_api import expect as assertions

    assertions.set_options(timeout=LONGEST_MS)
    return assertions(what)


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong with the page for people who use a screen reader, a keyboard or see little."""
    page.wait_for_load_state("load")
    # Evaluated by the debugger, to which the page's policy does not apply.
    page.evaluate(Path(record()["axe"]).read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    nodes = [(one["id"], node) for one in found["violations"] for node in one["nodes"]]
    return [f"{rule}: {node['target']} {node['failureSummary']}" for rule, node in nodes]


def query(page: Page) -> dict[str, list[str]]:
    """The query of the page's address, as the page has it: `page.url` learns of a change without a load later."""
    return parse_qs(urlsplit(page.evaluate("location.href")).query)


def expect_query(page: Page, **values: str | None) -> None:
    """Wait until the query of the page's address has these values, and does not have those that are None."""
    page.wait_for_function(
        "values => { const query = new URLSearchParams(location.search);"
        " return Object.entries(values).every(([name, value]) => query.get(name) === value); }",
        arg=values,
    )


def overflow(page: Page) -> int:
    """Pixels that the page is wider than the screen."""
    page.wait_for_load_state("load")
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of an application that a thread serves."""
    import uvicorn

    with listen("127.0.0.1", 0) as listening:
        options = uvicorn.Config(app, http="h11", ws="none", log_level="critical", timeout_graceful_shutdown=1)
        server = uvicorn.Server(options)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
        thread.start()
        try:
            _wait(lambda: server.started or not thread.is_alive())
            assert server.started
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)


def _wait(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.01)
