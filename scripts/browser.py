"""Find or fetch the browser and the accessibility checker of the dashboard's tests: what `make test-parts` runs first.

In this order: the Chromium that WHET_CHROMIUM names; one on the PATH; Playwright's own; the one of the npm package
`@sparticuz/chromium`, which brings the libraries and the font that a bare container lacks. Each is tried by showing a
page with it. What was found is written to `browser.json` in the user's cache, with what it needs in its environment;
tests read it with `tests/dashboard/browser.py`. Packages of npm are verified against the digests below, and kept.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whet" / "browser"
RECORD = CACHE / "browser.json"
REGISTRY = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
CHROMIUM = (
    "@sparticuz/chromium",
    "153.0.0",
    "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
)
AXE = (
    "axe-core",
    "4.14.1",
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
"""Name, version and SHA-512 of the packages, as the registry states them."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
TRIES = 3
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir><dir>/usr/local/share/fonts</dir><dir>{fonts}</dir>
  <cachedir>{cache}</cachedir>
</fontconfig>
"""


class BrowserError(Exception):
    """No browser could be had this way: why."""


Browser = tuple[Path, dict[str, str]]
"""A program, and what has to be added to its environment."""


def main() -> int:
    CACHE.mkdir(parents=True, exist_ok=True)
    reasons = []
    for name, way in {
        "WHET_CHROMIUM": _named,
        "PATH": _on_path,
        "playwright install": _of_playwright,
        CHROMIUM[0]: _of_npm,
    }.items():
        try:
            executable, environment = way()
            axe = _package(*AXE) / "axe.min.js"
        except BrowserError as error:
            reasons.append(f"  {name}: {error}")
            continue
        record = {"executable": str(executable), "environment": environment, "axe": str(axe), "source": name}
        _write(RECORD, json.dumps(record, indent=1).encode())
        print(f"browser: {executable} ({name})")
        return 0
    RECORD.unlink(missing_ok=True)
    print("browser: none; the tests that need one are skipped. What was tried:", *reasons, sep="\n", file=sys.stderr)
    return 1 if "WHET_CHROMIUM" in os.environ else 0


def starts(executable: Path, environment: Mapping[str, str]) -> str:
    """Why this program does not show a page; empty where it does. Root has to run it without its sandbox."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=executable, env={**os.environ, **environment}, args=["--no-sandbox"], timeout=60_000
            )
            page = browser.new_page()
            page.set_content("<p>it works</p>")
            text = page.inner_text("p")
            new_enough = page.evaluate("CSS.supports('color', 'light-dark(red, blue)')")
            browser.close()
        except (Error, OSError) as error:
            lines = [line.strip() for line in str(error).splitlines() if "error" in line.lower()] or [str(error)]
            return f"{executable} does not start: {lines[-1][:300]}"
    if not new_enough:
        return f"{executable} is too old: it has no light-dark() of CSS"
    return "" if text == "it works" else f"{executable} shows no page"


def _named() -> Browser:
    named = os.environ.get("WHET_CHROMIUM")
    if not named:
        raise BrowserError("not set")
    if reason := starts(Path(named), {}):
        raise BrowserError(reason)
    return Path(named), {}


def _on_path() -> Browser:
    reasons = ["there is none"]
    for found in filter(None, map(shutil.which, NAMES)):
        reason = starts(Path(found), {})
        if not reason:
            return Path(found), {}
        reasons.append(reason)
    raise BrowserError(reasons[-1])


def _of_playwright() -> Browser:
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "playwright", "install", "chromium-headless-shell"]
    environment = {"PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "15000"} | os.environ
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise BrowserError("the download did not end within five minutes") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("Error")] or ["it failed"]
        raise BrowserError(lines[0][:300])
    with sync_playwright() as playwright:
        folder = Path(playwright.chromium.executable_path).parents[2]
    shells = [*folder.glob("chromium_headless_shell-*/*/*headless[-_]shell")]
    if not shells:
        raise BrowserError(f"nothing was installed below {folder}")
    newest = max(shells, key=lambda path: path.stat().st_mtime)
    if reason := starts(newest, {}):
        raise BrowserError(reason)
    return newest, {}


def _of_npm() -> Browser:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise BrowserError("the package is for Linux on x86-64 alone")
    folder = _package(*CHROMIUM)
    executable = folder / "chromium"
    environment = {"FONTCONFIG_FILE": str(folder / "fonts.conf")}
    with_libraries = environment | {"LD_LIBRARY_PATH": str(folder / "al2023" / "lib")}
    reason = ""
    for tried in (environment, with_libraries):
        reason = starts(executable, tried)
        if not reason:
            return executable, tried
    raise BrowserError(reason)


def _package(name: str, version: str, digest: str) -> Path:
    """The folder of a package of npm, fetched once; it is whole where it is there."""
    folder = CACHE / f"{name.rpartition('/')[2]}-{version}"
    if folder.is_dir():
        return folder
    content = _download(f"{REGISTRY}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz")
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != digest:
        raise BrowserError(f"{name} {version} has the digest {found} and not {digest}")
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        for path, member in _members(content):
            _write(Path(work) / path, member)
        _unpack(Path(work), folder)
        try:
            os.rename(work, folder)
        except OSError:
            if not folder.is_dir():  # another process was first
                raise
        else:
            os.mkdir(work)  # for the end of the with
    return folder


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name.removeprefix("package/"), file.read()


def _unpack(work: Path, final: Path) -> None:
    """Chromium's files, which are packed with Brotli, and where its font is."""
    if not (work / "bin").is_dir():
        return
    import brotli

    for packed in sorted((work / "bin").glob("*.br")):
        content = brotli.decompress(packed.read_bytes())
        if packed.name.endswith(".tar.br"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(work / packed.name.removesuffix(".tar.br"), filter="data")
        else:
            _write(work / packed.stem, content)
            (work / packed.stem).chmod(0o755)
    for library in (work / "swiftshader").glob("*"):  # which Chromium expects next to itself
        library.rename(work / library.name)
    fonts = FONTS.format(fonts=final / "fonts", cache=final / "font-cache")
    _write(work / "fonts.conf", fonts.encode())
    shutil.rmtree(work / "bin")


def _download(url: str) -> bytes:
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content: bytes = answer.read()
                return content
        except (OSError, urllib.error.URLError) as error:
            if attempt == TRIES:
                raise BrowserError(f"{url}: {error}") from None
    raise AssertionError


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
