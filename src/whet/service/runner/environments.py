"""The environment packages of a run, installed: `DATA/environments/{digest}/`, a folder for each set of versions.

A folder is a virtual environment in which all that this Python has installed is visible: whet, torch and the rest are
never installed again, and what asks for another version of them is refused in pip's words. Only wheels are installed,
so no code of a package runs here. The wheels of environments come from the store by way of a server on the loopback
interface that lives as long as pip does, so that pip records their owner, version and hash, which loading verifies.
A folder is built aside and renamed; of two runners that build the same one, the second takes the first's.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import re
import secrets
import shutil
import site
import sys
import sysconfig
import tempfile
import threading
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import quote, unquote

from sqlalchemy import select
from sqlalchemy.orm import Session

from whet.authoring.install import install_environment
from whet.envs.identity.ids import parse_id
from whet.errors import ConfigError, WhetError
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import Account, EnvironmentRow, StoredFile, Version


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """The wheel of a version of an environment, in the store."""

    id: str  # owner/name@version
    owner: str
    name: str
    version: str
    filename: str
    sha256: str

    @property
    def path(self) -> str:
        """As the hub's addresses end, from which the owner is read (envs/identity/installed.py)."""
        return "/files/" + "/".join(map(quote, (self.owner, self.name, self.version, self.filename)))


def wheels_of(session: Session, environments: Sequence[str]) -> list[PinnedWheel]:
    """The wheels of `owner/name@version`. Raises `ConfigError` for one that is not on the hub (any more)."""
    found = []
    for text in environments:
        wanted = parse_id(text, exists=lambda _: False)
        query = (
            select(StoredFile)
            .join(StoredFile.version)
            .join(Version.environment)
            .join(EnvironmentRow.owner)
            .where(Account.name == wanted.owner, EnvironmentRow.name == wanted.name, Version.version == wanted.version)
            .where(StoredFile.kind == "wheel", Version.deleted_at.is_(None), EnvironmentRow.deleted_at.is_(None))
        )
        file = session.scalar(query)
        if file is None or wanted.owner is None or wanted.version is None:
            raise ConfigError(
                f"environment '{text}' is not on this hub any more. Push it again, or name another version."
            )
        found.append(PinnedWheel(text, wanted.owner, wanted.name, wanted.version, file.filename, file.sha256))
    return found


def python_with(data: Path, store: FileStore, wheels: Sequence[PinnedWheel]) -> Path:
    """The interpreter that has these environments; this one where there are none.

    Raises `ConfigError` with pip's reason where they cannot be installed.
    """
    if not wheels:
        return Path(sys.executable)
    target = data / "environments" / _digest(wheels)
    if not target.is_dir():
        _build(target, store, wheels)
    return _python(target)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _digest(wheels: Sequence[PinnedWheel]) -> str:
    """Of what decides what is installed: the wheels, this Python, and what it has."""
    what = [sys.executable, sys.version, _constraints(), *sorted(f"{one.id} {one.sha256}" for one in wheels)]
    return hashlib.sha256("\0".join(what).encode()).hexdigest()[:32]


def _constraints() -> str:
    """Every package that is installed here, at its version."""
    found = {}
    for one in metadata.distributions():
        name = one.metadata["Name"]
        if name and one.version:
            found[re.sub(r"[-_.]+", "-", name).lower()] = one.version
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def _build(target: Path, store: FileStore, wheels: Sequence[PinnedWheel]) -> None:
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        venv.create(aside, with_pip=False, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(aside), "platbase": str(aside)}))
        lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in _own_packages())
        (packages / "_whet_runner.pth").write_text(lines, encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix="whet-constraints-") as folder, _served(store, wheels) as address:
            constraints = Path(folder, "constraints.txt")
            constraints.write_text(_constraints(), encoding="utf-8")
            variables = _variables_of_pip(aside, constraints)
            for wheel in wheels:
                _install(wheel, address, variables)
        (aside / "environments.json").write_text(json.dumps([one.id for one in wheels]), encoding="utf-8")
        aside.chmod(0o755)
        with contextlib.suppress(OSError):
            aside.rename(target)
        if not target.is_dir():
            raise ConfigError(f"{target} cannot be made.")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _install(wheel: PinnedWheel, address: str, variables: Mapping[str, str]) -> None:
    try:
        install_environment(f"{wheel.name} @ {address}{wheel.path}#sha256={wheel.sha256}", variables=variables)
    except WhetError as error:
        reason = str(error).replace(address, "").strip()
        raise ConfigError(f"environment '{wheel.id}' cannot be installed: {reason}") from error


def _own_packages() -> list[str]:
    """The folders of packages of this Python, in the order in which it looks."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [folder for folder in folders if os.path.isdir(folder) and folder in sys.path]


def _variables_of_pip(folder: Path, constraints: Path) -> dict[str, str]:
    """pip's own settings stay (its index); what the service's processes know besides does not reach it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "SSL_"))
        or name in ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "NETRC")
        or name.lower() in ("http_proxy", "https_proxy", "all_proxy")
    }
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"]))
    return {
        **kept,
        "NO_PROXY": direct,
        "no_proxy": direct,
        "PIP_PYTHON": str(_python(folder)),
        "PIP_ONLY_BINARY": ":all:",
        "PIP_CONSTRAINT": str(constraints),
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
    }


@contextlib.contextmanager
def _served(store: FileStore, wheels: Sequence[PinnedWheel]) -> Iterator[str]:
    """The address of a server that has these wheels, behind a path that cannot be guessed."""
    secret = f"/{secrets.token_urlsafe(24)}"
    files = {secret + unquote(wheel.path): wheel.sha256 for wheel in wheels}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sha256 = files.get(unquote(self.path))
            if sha256 is None:
                self.send_error(404)
                return
            with store.open(sha256) as content:
                data = content.read()
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """The address is a secret."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="wheels", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}{secret}"
        finally:
            server.shutdown()
