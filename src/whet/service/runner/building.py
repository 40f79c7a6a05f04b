"""`python -m whet.service.runner.building`, inside of the isolation: a virtual environment with a run's environments.

It reads an order on standard input, and ends with the process that holds the other end. pip works with the runner's
packages on its path and never with those that it installs, without `site` (`-I -S`): of what it unpacks no line runs.
It knows one index, which this process serves: a package of the organisation comes from the hub or not at all, every
other one from the upstream. Exit code 4 and the reason on standard output where something cannot be installed.
"""

from __future__ import annotations

import http.server
import json
import os
import secrets
import sys
import sysconfig
import tempfile
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from whet.authoring.install import Pip, install_sources
from whet.errors import ConfigError, WhetError
from whet.system import untrusted
from whet.system.children import when_closed

BOOT = """import json, runpy, sys
given = json.loads(sys.argv.pop(1))
sys.path[:], sys.prefix, sys.executable = given["path"], given["prefix"], given["python"]
sys.exec_prefix = sys.prefix
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
REFUSED = 4
WHEELS, SCRATCH = "wheels", "scratch"
"""Folders in that of the virtual environment, while it is built."""


def boot(module: str, path: list[str], prefix: str, python: str) -> tuple[str, ...]:
    """The command of a module in this Python, as if it was the one in `prefix`, with these folders alone on its path.

    No file of a folder runs because it is there: no `.pth`, no `sitecustomize`.
    """
    given = json.dumps({"path": path, "prefix": prefix, "python": python})
    return (sys.executable, "-I", "-S", "-c", BOOT, given, module)


def own_path() -> list[str]:
    """What this Python imports from, and whet's source."""
    entries = [entry for entry in sys.path if entry and os.path.exists(entry)]
    return list(dict.fromkeys([*map(os.path.abspath, entries), str(Path(__file__).parents[3])]))


def build(order: dict[str, Any]) -> None:
    """Fill the folder of the order. Raises `WhetError`."""
    folder, scratch = Path(order["folder"]), Path(order["folder"], SCRATCH)
    tempfile.tempdir = str(scratch)  # packages may be large, and other folders for it are in memory
    venv.create(folder, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    lines = "".join(f"import site; site.addsitedir({one!r})\n" for one in order["packages"])
    (packages / "_whet_runner.pth").write_text(lines, encoding="utf-8")
    constraints = scratch / "constraints.txt"
    constraints.write_text(order["constraints"], encoding="utf-8")
    with _served(order) as address:
        variables = {**os.environ, **order["pip"]} | {
            "PIP_INDEX_URL": f"{address}/simple/",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_ONLY_BINARY": ":all:",
            "PIP_CONSTRAINT": str(constraints),
            "PIP_CACHE_DIR": str(scratch / "cache"),
            "TMPDIR": str(scratch),
            "NETRC": str(scratch / "netrc"),
        }
        for name in ("NO_PROXY", "no_proxy"):
            variables[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
        standard = os.path.dirname(os.__file__)
        behind = [one for one in order["path"] if "-packages" in one or not one.startswith(standard)]
        pip = Pip(boot("pip", order["path"], str(folder), order["python"]), variables, tuple(behind))
        sources = [f"{name} @ {address}{path}#sha256={sha256}" for name, path, sha256 in order["sources"]]
        try:
            install_sources(sources, pip)
        except WhetError as error:
            raise ConfigError(str(error).replace(address, "")) from None


@contextmanager
def _served(order: dict[str, Any]) -> Iterator[str]:
    """The address of the index and of its files, behind a path that other processes of this machine cannot guess."""
    secret, wheels = f"/{secrets.token_urlsafe(24)}", Path(order["folder"], WHEELS)
    files = {unquote(path): sha256 for _, path, sha256 in [*order["sources"], *order["offered"]]}
    upstream = _with_login_in_file(order)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(self.path)
            below = path.removeprefix(secret)
            name = below.removeprefix("/simple/").strip("/")
            if path == below:
                self.send_error(404)
            elif below in files:
                self._send("application/octet-stream", (wheels / files[below]).read_bytes())
            elif links := [one for one in order["offered"] if one[0] == name]:
                self._send("text/html", _page(secret, links).encode())
            elif not below.startswith("/simple/") or name in order["private"] or not upstream:
                self.send_error(404)
            else:
                self.send_response(302)
                self.send_header("Location", f"{upstream.rstrip('/')}/{quote(name)}/")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _send(self, kind: str, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """The address is a secret."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, name="index", daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}{secret}"
        finally:
            server.shutdown()


def _page(secret: str, links: list[list[str]]) -> str:
    """Of one package in the index: a link to each of its files."""
    return "".join(
        f'<a href="{escape(f"{secret}{path}#sha256={sha256}")}">{escape(unquote(path).rpartition("/")[2])}</a>\n'
        for _, path, sha256 in links
    )


def _with_login_in_file(order: dict[str, Any]) -> str | None:
    """The upstream's address without its user and password: pip passes them on from a file alone when redirected."""
    address: str | None = order["upstream"]
    if not address:
        return None
    split = urlsplit(address)
    user, password = order["login"] or (split.username, split.password)
    if user:
        path = Path(order["folder"], SCRATCH, "netrc")
        words = ("machine", split.hostname or "", "login", unquote(user), "password", unquote(password or ""))
        path.write_text(" ".join(words) + "\n", encoding="utf-8")
        path.chmod(0o600)
    return urlunsplit(split._replace(netloc=split.netloc.rpartition("@")[2]))


def main() -> int:
    order = json.loads(sys.stdin.buffer.readline())
    when_closed(0, lambda: os._exit(3))
    try:
        build(order)
    except WhetError as error:
        print(error)
        return REFUSED
    finally:
        with suppress(OSError):
            untrusted.remove(Path(order["folder"]), SCRATCH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
