"""`scripts/browser.py`: what it fetches is what the project names, and what it cannot find it says."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "browser.py"


def archive() -> bytes:
    """A package as npm sends one."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as file:
        member = tarfile.TarInfo("package/axe.min.js")
        member.size = 3
        file.addfile(member, io.BytesIO(b"axe"))
    return target.getvalue()


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script, with a cache of its own and a registry that has one package."""
    spec = importlib.util.spec_from_file_location("browser_setup", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    content = archive()

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/@some/thing/-/thing-1.0.0.tgz"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(content if found else b"")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "CACHE", tmp_path)
    monkeypatch.setattr(module, "REGISTRY", f"http://127.0.0.1:{server.server_port}")
    module.digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    yield module
    server.shutdown()
    server.server_close()


def test_package_is_fetched_once_and_has_its_files(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = browser._package("@some/thing", "1.0.0", browser.digest)
    assert (folder / "axe.min.js").read_bytes() == b"axe"
    monkeypatch.setattr(browser, "REGISTRY", "http://127.0.0.1:9")
    assert browser._package("@some/thing", "1.0.0", browser.digest) == folder


def test_package_with_another_digest_is_refused_and_not_kept(browser: Any, tmp_path: Path) -> None:
    with pytest.raises(browser.BrowserError, match="has the digest"):
        browser._package("@some/thing", "1.0.0", "A" * 86 + "==")
    assert [*tmp_path.iterdir()] == []


def test_package_that_is_not_there_is_named(browser: Any) -> None:
    with pytest.raises(browser.BrowserError, match=r"other-2\.0\.0\.tgz.*404"):
        browser._package("other", "2.0.0", browser.digest)
