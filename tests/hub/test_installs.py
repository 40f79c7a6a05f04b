"""Real installers through one index: the hub's packages come from the hub, whatever the upstream index offers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")


class Upstream:
    """An index that offers every name in version 9.9.9, and tells which were asked for."""

    def __init__(self, packages: Any) -> None:
        asked = self.asked = []
        self.packages = packages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                name = self.path.rstrip("/").rpartition("/")[2]
                if self.path.startswith("/simple/"):
                    wheel = packages.Wheel(name=name, version="9.9.9", code="DECOY = True\n")
                    body = f'<a href="/files/{wheel.filename}">{wheel.filename}</a>'.encode()
                    kind = "text/html"
                else:
                    module = name.partition("-")[0].replace("_", "-")
                    body = packages.Wheel(name=module, version="9.9.9", code="DECOY = True\n").bytes()
                    kind = "application/octet-stream"
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def upstream(packages: Any) -> Iterator[Upstream]:
    found = Upstream(packages)
    yield found
    found.close()


def installed(target: Path) -> dict[str, str]:
    found = (folder.name.removesuffix(".dist-info").partition("-") for folder in target.glob("*.dist-info"))
    return {name: version for name, _, version in found}


def run(command: list[str], target: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(target.parent), "PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


INSTALLERS = {
    "pip": [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"],
    "uv": [shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv", "pip", "install", "--no-cache"],
}


@pytest.mark.parametrize("installer", ["pip", pytest.param("uv", marks=pytest.mark.parts)])
def test_installer_takes_the_hubs_bytes_and_never_the_decoy(
    installer: str, hub: Any, packages: Any, listening: Any, upstream: Upstream, tmp_path: Path
) -> None:
    public = packages.Wheel(name="open-game", more="Requires-Dist: a-dependency\n")
    private = packages.Wheel(name="own-game")
    hub.push("ann", "ann", public, visibility="PUBLIC")
    hub.push("ann", "ann", private)
    hub.hub.upstream = f"{upstream.address}/simple/"
    dependency = packages.Wheel(name="a-dependency", version="9.9.9", code="DECOY = True\n")
    hashes = {one.name: hashlib.sha256(one.bytes()).hexdigest() for one in (public, private, dependency)}
    requirements = tmp_path / "requirements.txt"
    pinned = {"open-game": "1.0.0", "own-game": "1.0.0", "a-dependency": "9.9.9"}
    lines = [f"{name}=={version} --hash=sha256:{hashes[name]}" for name, version in pinned.items()]
    requirements.write_text("\n".join(lines) + "\n")
    with listening(hub.app) as address:
        host = address.removeprefix("http://")
        index = f"http://__token__:{hub.tokens['ann']}@{host}/index/ann/all/simple/"
        command = [*INSTALLERS[installer], "--index-url", index]
        first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
        run([*command, "--target", str(first), "open-game", "own-game"], first)
        run([*command, "--target", str(second), "--require-hashes", "-r", str(requirements)], second)
        wheel = f"{address}/files/ann/open-game/1.0.0/{public.filename}#sha256={hashes['open-game']}"
        run([*command, "--target", str(third), "--no-deps", wheel], third)
    for target in (first, second):
        assert installed(target) == {"open_game": "1.0.0", "own_game": "1.0.0", "a_dependency": "9.9.9"}
        assert "DECOY" not in (target / "own_game.py").read_text()
    assert {path for path in upstream.asked if path.startswith("/simple/")} == {"/simple/a-dependency/"}
    written = json.loads(next(third.glob("*.dist-info/direct_url.json")).read_text())
    assert written["url"] == f"{address}/files/ann/open-game/1.0.0/{public.filename}"
    if installer == "pip":  # uv writes no hash
        assert written["archive_info"]["hashes"]["sha256"] == hashes["open-game"]


def test_installer_without_a_token_gets_no_decoy_of_a_private_package(
    hub: Any, packages: Any, listening: Any, upstream: Upstream, tmp_path: Path
) -> None:
    hub.push("ann", "ann", packages.Wheel(name="own-game"))
    hub.hub.upstream = f"{upstream.address}/simple/"
    hub.user("mal")
    with listening(hub.app) as address:
        for login in ("", "__token__:whet_expired@", f"__token__:{hub.tokens['mal']}@"):
            index = f"{address.replace('://', '://' + login)}/index/ann/all/simple/"
            command = [
                *INSTALLERS["pip"],
                "--no-input",
                "--index-url",
                index,
                "--target",
                str(tmp_path / "t"),
                "own-game",
            ]
            assert subprocess.run(command, capture_output=True, timeout=200).returncode != 0
    assert upstream.asked == []
    assert importlib.util.find_spec("own_game") is None
