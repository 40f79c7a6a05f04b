"""Write the pictures of docs/guides/view.md: `whet dashboard` in a real browser, on real runs of whet/tiny.

.venv/bin/python -m pip install 'playwright==1.65.2' 'brotli>=1.1'
.venv/bin/python scripts/browser.py
.venv/bin/python scripts/dashboard_pictures.py

Three minutes on two idle cores. The runs are seeded, and made with the commands that the page names.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from browser import RECORD
from pictures import ROOT, TARGET, working_folder
from whet.cli.main import main as whet

QUICKSTART = ROOT / "configs" / "rl" / "quickstart.toml"
RATES = ("5e-4", "1e-3", "2e-3", "4e-3")
STEPS = "24"
PHONE = {"width": 390, "height": 800}
DESKTOP = {"width": 1280, "height": 860}


def main() -> None:
    with working_folder():
        assert whet(["eval", "run", "calculator", "-n", "8", "-r", "4"]) == 0
        for rate in RATES:
            options = ["--name", f"rate-{rate}", "--learning-rate", rate, "--max-steps", STEPS]
            assert whet(["train", "run", str(QUICKSTART), *options, "--deployment.threads", "1"]) == 0
        with served() as address, started() as browser:
            take_all(browser, address)


def take_all(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/runs?kind=training")
    ids = {str(one.inner_text()): str(one.get_attribute("href")) for one in page.locator("#runs a.name").all()}
    page.close()
    run = ids[f"rate-{RATES[1]}"]
    compared = "&".join(f"run={path.rpartition('/')[2]}" for path in ids.values())
    take(browser, f"{address}/runs", "dashboard-runs")
    take(browser, address + run, "dashboard-run")
    take(browser, address + run, "dashboard-run-dark", color_scheme="dark")
    take(browser, f"{address}/compare?{compared}", "dashboard-compare")
    take(browser, address + run, "dashboard-phone", viewport=PHONE, color_scheme="dark")
    rollouts = f"{address}{run}/rollouts?step=12&sort=reward&descending=true"
    first = first_link(browser, rollouts)
    take(browser, rollouts, "dashboard-rollouts")
    take(browser, f"{address}{first}", "dashboard-rollout")
    take(browser, f"{address}{first}".replace("/rollouts/", "/groups/"), "dashboard-group")


def first_link(browser: Browser, url: str) -> str:
    """Path of the first rollout of a list, once all files are read."""
    page = browser.new_page()
    page.goto(url)
    while page.get_by_text("reading the files").count():
        page.wait_for_timeout(500)
        page.reload()
    link = str(page.locator("main [data-open], main table td a").first.get_attribute("href"))
    page.close()
    return link


def take(browser: Browser, url: str, name: str, **options: Any) -> None:
    """What the page shows once its curves are drawn, with at most 256 colours: a page of text has few."""
    context = browser.new_context(**{"viewport": DESKTOP, "locale": "en-US", "color_scheme": "light", **options})
    page = context.new_page()
    page.goto(url)
    page.wait_for_load_state("load")
    if page.locator(".plot").count():
        page.wait_for_selector(".plot canvas")
    page.evaluate("document.fonts.ready")
    page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256)
    picture.save(TARGET / f"{name}.png", optimize=True)
    context.close()


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    known = json.loads(RECORD.read_text())
    with sync_playwright() as playwright:
        environment = {**os.environ, **known["environment"]}
        browser = playwright.chromium.launch(
            executable_path=known["executable"], env=environment, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of `whet dashboard` on the folders of this directory."""
    command = [sys.executable, "-m", "whet.cli.main", "dashboard", "runs", "outputs", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+(?=;)", process.stderr.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


if __name__ == "__main__":
    main()
