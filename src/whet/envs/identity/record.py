"""What a run or an evaluation records of an environment: where it came from, and a digest of its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whet.envs.identity.ids import parse_id
from whet.envs.identity.installed import installed_package
from whet.envs.loading import locate
from whet.errors import EnvironmentLoadError

LEFT_OUT = ("__pycache__", ".git", ".venv", ".ruff_cache", ".mypy_cache", ".pytest_cache")
WHOLE_BYTES = 4 << 20  # of a file up to this size all is read, of a larger one so much of either end
MOST_BYTES = 512 << 20  # read in all; of files after that, names and sizes count
COUNTED = ("name", "owner", "version", "wheel", "commit", "content")
"""What makes an environment another one. A folder may move, and a name be written in another way."""


@dataclass(frozen=True, slots=True)
class EnvironmentIdentity:
    """Which environment was loaded."""

    id: str
    name: str | None = None
    owner: str | None = None  # of a wheel of a hub
    version: str | None = None  # of the installed package
    wheel: str | None = None  # SHA-256 of the wheel that it was installed from, where that is recorded
    commit: str | None = None
    path: str | None = None  # of a folder or a file that is loaded from where it is
    content: str | None = None  # digest of the module's files

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def changed_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The fields that make two identities those of different environments."""
    return [key for key in COUNTED if before.get(key) != now.get(key)]


def identity_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`version: was '1.0', is '1.1'`, for each field of two identities that counts."""
    return [f"{key}: was {before.get(key)!r}, is {now.get(key)!r}" for key in changed_fields(before, now)]


def identify(environment: str) -> EnvironmentIdentity:
    """The identity of an environment that can be loaded; of one that the program itself makes, the id alone."""
    try:
        location = locate(environment)
    except EnvironmentLoadError:
        return EnvironmentIdentity(environment)
    wanted = parse_id(environment)
    package = installed_package(location.module)
    file = location.path / "__init__.py" if location.path.is_dir() else location.path
    installed = package if package is not None and location.root is None and package.holds(file) else None
    path = location.path.parent if location.path.name == "__init__.py" else location.path
    return EnvironmentIdentity(
        id=environment,
        name=wanted.name,
        owner=None if installed is None else installed.owner,
        version=None if package is None else package.version,
        wheel=None if installed is None else installed.wheel,
        commit=None if installed is None else installed.commit,
        path=None if installed else str(path),
        content=digest_of_files(path) if path.exists() else None,
    )


def digest_of_files(path: Path) -> str:
    """A short digest of a file, or of all files in a folder with their names; caches are left out."""
    digest, left = hashlib.sha256(), MOST_BYTES
    for name, file in _files(path):
        size = file.stat().st_size
        digest.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))
        if left <= 0:
            continue
        with file.open("rb") as content:
            digest.update(content.read(WHOLE_BYTES))
            if size > WHOLE_BYTES:
                content.seek(-WHOLE_BYTES, os.SEEK_END)
                digest.update(content.read())
        left -= min(size, 2 * WHOLE_BYTES)
    return digest.hexdigest()[:16]


def _files(path: Path) -> Sequence[tuple[str, Path]]:
    if path.is_file():
        return [(path.name, path)]
    paths = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        paths += [Path(folder, name) for name in names if not name.endswith((".pyc", ".pyo"))]
    return sorted((str(file.relative_to(path)), file) for file in paths if file.is_file())
