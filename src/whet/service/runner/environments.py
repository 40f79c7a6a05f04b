"""The environment packages of a run, installed: `DATA/environments/{digest}/`, a folder for each set of versions.

A folder is a virtual environment in which all that this Python has installed is visible: whet, torch and the rest are
never installed again, and what asks for another version of them is refused in pip's words. Only wheels are installed,
and that inside of the isolation, as the run's user (`building.py`): this process copies files of the store and reads
none of them. What a package requires of its organisation comes from the hub, at versions that the run may see, and
never from another index. A folder is built aside and renamed; of two runners that build the same one, the second takes
the first's.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import netrc
import os
import re
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from select import select as ready
from typing import Any
from urllib.parse import quote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sqlalchemy import or_, select
from sqlalchemy.orm import Session, aliased

from whet.envs.identity.ids import parse_id
from whet.errors import ConfigError
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import Account, EnvironmentRow, Membership, StoredFile, Version
from whet.service.runner import isolation as isolating
from whet.service.runner.building import REFUSED, SCRATCH, WHEELS, boot, own_path
from whet.service.runner.isolation import NONE, Isolation, View
from whet.system import untrusted
from whet.system.children import output_of, start

PYPI = "https://pypi.org/simple/"
PIP_SETTINGS = ("proxy", "cert", "timeout", "retries", "trusted-host")
"""Of pip's configuration on this machine, besides its index. Further indexes and folders of packages are left out."""
LOOK_S = 0.2
SAID_BYTES = 1 << 16
BUILD_S = 1800.0
"""An index that answers slowly keeps no other run from being prepared for longer."""


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """The wheel of a version of an environment, in the store."""

    id: str  # owner/name@version
    owner: str
    name: str
    version: str
    filename: str
    sha256: str
    requires: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """As the hub's addresses end, from which the owner is read (envs/identity/installed.py)."""
        return "/files/" + "/".join(map(quote, (self.owner, self.name, self.version, self.filename)))

    @staticmethod
    def of(owner: str, name: str, file: StoredFile) -> PinnedWheel:
        version = file.version.version
        id = f"{owner}/{name}@{version}"
        return PinnedWheel(id, owner, name, version, file.filename, file.sha256, tuple(file.version.requires_dist))


@dataclass(frozen=True, slots=True)
class RunPackages:
    """What is installed for a run, and what its packages may bring with them."""

    wheels: Sequence[PinnedWheel] = ()
    offered: Sequence[PinnedWheel] = ()
    """Versions of packages of the same organisations that they require, directly or not."""
    private: frozenset[str] = frozenset()
    """Names of these organisations: no other index is searched for them."""


def wheels_of(session: Session, environments: Sequence[str]) -> list[PinnedWheel]:
    """The wheels of `owner/name@version`. Raises `ConfigError` for one that is not on the hub (any more)."""
    wheels = []
    for text in environments:
        wanted = parse_id(text, of_hub=True)
        query = _wheels().where(
            Account.name == wanted.owner, EnvironmentRow.name == wanted.name, Version.version == wanted.version
        )
        file = session.scalar(query)
        if file is None or wanted.owner is None or wanted.version is None:
            raise ConfigError(
                f"environment '{text}' is not on this hub any more. Push it again, or name another version."
            )
        wheels.append(PinnedWheel.of(wanted.owner, wanted.name, file))
    return wheels


def _wheels() -> Any:
    query = select(StoredFile).join(StoredFile.version).join(Version.environment).join(EnvironmentRow.owner)
    return query.where(StoredFile.kind == "wheel", Version.deleted_at.is_(None), EnvironmentRow.deleted_at.is_(None))


def packages_of(session: Session, environments: Sequence[str], owner: str, user: str) -> RunPackages:
    """What a run of `owner` that `user` submitted installs.

    Raises `ConfigError` for an environment that is gone, and where two organisations give one name to packages that
    are both required.
    """
    wheels = wheels_of(session, environments)
    if not wheels:
        return RunPackages()
    organisations = {one.owner for one in wheels}
    query = select(Account.name, EnvironmentRow.name).join(EnvironmentRow.owner)
    names = {(one, name) for one, name in session.execute(query.where(Account.name.in_(organisations)))}
    member = aliased(Account)
    memberships = select(Membership.owner_id).join(member, member.id == Membership.user_id).where(member.name == user)
    seen = or_(EnvironmentRow.visibility == "PUBLIC", Account.name.in_((owner, user)), Account.id.in_(memberships))
    installed = _installed()
    sources = {one.name: one.owner for one in wheels}  # "": any other index
    offered, waiting = list(wheels), list(wheels)
    while waiting:
        requiring = waiting.pop()
        for name in {str(canonicalize_name(Requirement(line).name)) for line in requiring.requires}:
            if name in installed or name in {one.name for one in wheels}:
                continue
            source = requiring.owner if (requiring.owner, name) in names else ""
            known = name in sources
            if sources.setdefault(name, source) != source:
                of = " and ".join(f"of {one}" if one else "of another index" for one in sorted({source, sources[name]}))
                raise ConfigError(f"environments of this run require two packages {name}: {of}. Give each its own run.")
            if source and not known:
                files = session.scalars(_wheels().where(Account.name == source, EnvironmentRow.name == name, seen))
                pinned = [PinnedWheel.of(source, name, file) for file in files if file.version.yanked_at is None]
                offered += pinned
                waiting += pinned
    private = {name for _, name in names if sources.get(name) != ""}
    return RunPackages(wheels, offered, frozenset(private))


@dataclass(frozen=True, slots=True)
class Builder:
    """What installing needs of a runner."""

    data: Path
    store: FileStore
    isolation: Isolation = NONE
    hidden: Sequence[Path] = ()
    upstream: str | None = None  # the index for names that are not of the hub; None: pip's
    leaving: threading.Event = field(default_factory=threading.Event)
    """Ends what is being installed."""

    def python_with(self, packages: RunPackages, user: int | None = None) -> Path:
        """The interpreter that has these environments; this one where there are none.

        Raises `ConfigError` with pip's reason where they cannot be installed.
        """
        if not packages.wheels:
            return Path(sys.executable)
        target = self.data / "environments" / _digest(packages)
        if not target.is_dir():
            self._build(target, packages, user)
        return target / "bin" / "python"

    def _build(self, target: Path, packages: RunPackages, user: int | None) -> None:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            for name in (WHEELS, SCRATCH):
                (aside / name).mkdir()
            for sha256 in {one.sha256 for one in packages.offered}:
                with self.store.open(sha256) as source:
                    (aside / WHEELS / sha256).write_bytes(source.read())
            if user is not None:
                untrusted.give(aside.parent, aside.name, user)
            self._install(target, aside, packages, user)
            untrusted.remove(aside, WHEELS)
            if user is not None:  # from here on it is read only, by each run that has the same packages
                untrusted.give(aside.parent, aside.name, os.geteuid())
            with untrusted.open_folder(aside.parent, aside.name) as descriptor:
                os.fchmod(descriptor, 0o755)
            with contextlib.suppress(OSError):
                aside.rename(target)
            if not target.is_dir():
                raise ConfigError(f"{target} cannot be made.")
        except FileNotFoundError as error:
            raise ConfigError(f"a wheel of the run's environments is not in the store: {error.filename}") from None
        finally:
            with contextlib.suppress(OSError):
                untrusted.remove(target.parent, aside.name)

    def _install(self, target: Path, aside: Path, packages: RunPackages, user: int | None) -> None:
        view = View(writable=[aside], hidden=self.hidden, user=user)
        order = self._order(target, aside, packages)
        inside = boot("whet.service.runner.building", order["path"], str(aside), sys.executable)
        isolated = self.isolation.bubblewrap is not None
        environment = isolating.environment(isolating.HOME if isolated else str(Path.home()))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with start(self.isolation.command(view, inside), env=environment, cwd="/", **pipes) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            deadline = time.monotonic() + BUILD_S
            while not ready([process.stdout], [], [], LOOK_S)[0]:
                if self.leaving.is_set() or time.monotonic() > deadline:
                    process.stdin.close()  # with which it ends
                    process.wait()
                    raise ConfigError(f"installing its environments took more than {BUILD_S / 60:.0f} minutes.")
            said = process.stdout.read(SAID_BYTES).decode("utf-8", "replace").strip()
        if process.returncode == 0:
            return
        ids = ", ".join(f"'{one.id}'" for one in packages.wheels)
        noun = "environment" if len(packages.wheels) == 1 else "environments"
        if process.returncode != REFUSED:
            said = f"its process ended with code {process.returncode}: {said}"
        raise ConfigError(f"{noun} {ids} cannot be installed: {said}")

    def _order(self, target: Path, aside: Path, packages: RunPackages) -> dict[str, Any]:
        """What building.py reads."""
        settings = _pip_settings()
        upstream: str | None = self.upstream or settings.get("index-url") or PYPI
        if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
            upstream = None
        names = {one.name for one in packages.wheels}
        pins = {**_installed(), **{one.name: one.version for one in packages.wheels}}
        return {
            "folder": str(aside),
            "python": str(target / "bin" / "python"),
            "path": own_path(),
            "packages": _own_packages(),
            "sources": [(one.name, one.path, one.sha256) for one in packages.wheels],
            "offered": [(one.name, one.path, one.sha256) for one in packages.offered],
            "private": sorted(packages.private - names),
            "constraints": _lines(pins),
            "upstream": upstream,
            "login": _login(upstream),
            "pip": {_variable(name): value for name, value in settings.items() if name in PIP_SETTINGS},
        }


def _digest(packages: RunPackages) -> str:
    """Of what decides what is installed: the wheels, what they may bring, this Python, and what it has."""
    files = sorted({f"{one.id} {one.sha256}" for one in packages.offered})
    wheels = sorted(one.id for one in packages.wheels)
    what = [sys.executable, sys.version, _lines(_installed()), *wheels, *files]
    return hashlib.sha256("\0".join(what).encode()).hexdigest()[:32]


def _installed() -> dict[str, str]:
    """Every package that is installed here, and its version. Not those on sys.path besides: setuptools adds its own."""
    versions = {}
    for one in metadata.distributions(path=_own_packages()):
        name = one.metadata["Name"]
        if name and one.version:
            versions[re.sub(r"[-_.]+", "-", name).lower()] = one.version
    return versions


def _lines(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def _own_packages() -> list[str]:
    """The folders of packages of this Python, in the order in which it looks."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [folder for folder in folders if os.path.isdir(folder) and folder in sys.path]


def _pip_settings() -> dict[str, str]:
    """pip's settings on this machine, from its files and its variables; the latter count more."""
    command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "config", "list"]
    said = output_of(command, cwd="/") or ""
    settings = {}
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{section}\.([\w-]+)=(.*)$", said, re.MULTILINE):
            with contextlib.suppress(ValueError, SyntaxError):
                settings[name] = str(ast.literal_eval(value))
    return settings


def _variable(setting: str) -> str:
    return f"PIP_{setting.upper().replace('-', '_')}"


def _login(address: str | None) -> tuple[str, str] | None:
    """User and password for an index from the user's .netrc."""
    host = urlsplit(address or "").hostname
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        login = netrc.netrc(os.environ.get("NETRC")).authenticators(host) if host else None
        return (login[0], login[2] or "") if login else None
    return None
