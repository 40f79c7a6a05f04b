"""The package that a push takes from a folder: its name and version, how it is built, and what is in it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from whet.authoring.review.about_files import secrets_in
from whet.config import read_toml, table_of
from whet.envs.loading import LOCAL_FOLDER
from whet.errors import ConfigError, MissingExtraError
from whet.hub.archive.names import check_environment_name, check_version
from whet.hub.archive.sdists import check_sdist
from whet.hub.archive.wheels import check_wheel
from whet.hub.client.settings import TOKEN_VARIABLE
from whet.parsing import parse_toml
from whet.system.children import output_of
from whet.system.files import expanded, write_whole
from whet.system.terminal import safe_text

LARGE_BYTES = 5 << 20
"""Bytes of one file from which a push warns: data of this size belongs into a dataset."""
MOST_SEARCHED = 1 << 20
EPOCH = "315532800"  # the first second that a zip file can name, so that equal sources give equal archives
_VERSION_LINE = re.compile(r"""^(\s*version\s*=\s*)(["'])[^"'\n]*\2""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A package's folder, and what its `pyproject.toml` calls it."""

    folder: Path
    name: str  # as the hub has it
    version: str


@dataclass(frozen=True, slots=True)
class BuiltArchive:
    """One built archive. `files` has its entries with their sizes in bytes."""

    kind: str  # "wheel" or "sdist"
    path: Path
    size: int
    sha256: str
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Built:
    """The archives of one version, and what its author should know before they are uploaded."""

    wheel: BuiltArchive
    sdist: BuiltArchive
    warnings: tuple[str, ...]


def find_source(target: str) -> PackageSource:
    """The package in a folder, or in the folder of that name in `environments/`. Raises `ConfigError`."""
    path = expanded(target)
    candidates = [path]
    if "/" not in target and target not in (".", ".."):
        candidates += [Path(LOCAL_FOLDER, target), Path(LOCAL_FOLDER, target.replace("-", "_"))]
    folder = next((one for one in candidates if (one / "pyproject.toml").is_file()), None)
    if folder is None:
        raise ConfigError(
            f"{target} is no folder with a pyproject.toml, nor the name of one in {LOCAL_FOLDER}/. "
            "Name the environment's folder, or make one with: whet env init NAME"
        )
    return read_source(folder.resolve())


def read_source(folder: Path) -> PackageSource:
    """Raises `ConfigError` for a `pyproject.toml` without a name and version that a hub takes."""
    file = folder / "pyproject.toml"
    project = table_of(read_toml(file), "project")
    name, version = project.get("name"), project.get("version")
    if not isinstance(name, str) or not isinstance(version, str):
        missing = "name" if not isinstance(name, str) else "version"
        raise ConfigError(f'{file}: [project] has no {missing}. Write it there, such as {missing} = "...".')
    try:
        normal = str(Version(version))
    except InvalidVersion:
        raise ConfigError(f"{file}: '{safe_text(version)}' is no version. Write one such as 1.2.0.") from None
    return PackageSource(folder, check_environment_name(str(canonicalize_name(name))), check_version(normal))


def next_version(version: str, taken: Iterable[str]) -> str:
    """The first patch version above this one and all those that are taken: 1.2.3 is followed by 1.2.4."""
    newest = max([Version(version), *map(Version, taken)])
    if newest.is_prerelease and newest.release > Version(version).release:
        return newest.base_version
    major, minor, patch = (*newest.release, 0, 0)[:3]
    return f"{major}.{minor}.{patch + 1}"


def write_version(source: PackageSource, version: str) -> PackageSource:
    """Change the version in `pyproject.toml` alone. Raises `ConfigError` where it is not a line of its own."""
    file = source.folder / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    before = read_toml(file)
    for match in _VERSION_LINE.finditer(text):
        changed = f"{text[: match.start()]}{match[1]}{match[2]}{version}{match[2]}{text[match.end() :]}"
        after = parse_toml(changed)
        expected = {**before, "project": {**table_of(before, "project"), "version": version}}
        if after == expected:
            write_whole(file, changed)
            return read_source(source.folder)
    raise ConfigError(f"{file}: the version {source.version} is not on a line of its own. Change it by hand.")


def uncommitted(folder: Path) -> list[str]:
    """What git knows as changed or new in a folder; nothing where the folder is in no repository."""
    if shutil.which("git") is None:
        return []
    command = ["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=all", "--", "."]
    return (output_of(command) or "").splitlines()


def build(source: PackageSource, into: Path) -> Built:
    """Build an sdist, and a wheel from it, in isolation, and check both as the hub will.

    Raises `ConfigError` with what the build printed, and `ArchiveRefusedError`.
    """
    _build_archives(source.folder, into)
    wheel, sdist = _only(into, "*.whl"), _only(into, "*.tar.gz")
    with wheel.open("rb") as file:
        check_wheel(file, wheel.name, source.name, source.version)
    with sdist.open("rb") as file:
        check_sdist(file, sdist.name, source.name, source.version)
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = tuple((item.filename, item.file_size) for item in archive.infolist() if not item.is_dir())
    with tarfile.open(sdist) as tar:
        in_sdist = tuple((item.name, item.size) for item in tar if item.isfile())
        warnings = tuple(_warnings(tar))
    return Built(_archive("wheel", wheel, in_wheel), _archive("sdist", sdist, in_sdist), warnings)


def _build_archives(folder: Path, into: Path) -> None:
    """One isolated environment for both; uv makes it where it is installed, since it is quicker than pip."""
    try:
        from build import BuildBackendException, BuildException, ProjectBuilder
        from build.env import DefaultIsolatedEnv
    except ModuleNotFoundError:
        raise MissingExtraError("whet env push", "push") from None

    try:
        with DefaultIsolatedEnv(installer="uv" if shutil.which("uv") else "pip") as environment:

            def make(kind: Literal["sdist", "wheel"], of: Path) -> Path:
                builder = ProjectBuilder.from_isolated_env(environment, of, runner=_run_hook)
                environment.install(builder.build_system_requires)
                environment.install(builder.get_requires_for_build(kind))
                return Path(builder.build(kind, into))

            sdist = make("sdist", folder)
            with tempfile.TemporaryDirectory(prefix="whet-build-") as unpacked:
                unpack(sdist, Path(unpacked))
                make("wheel", Path(unpacked))
    except subprocess.CalledProcessError as error:
        raise _failed(folder, str(error.stdout or "") + str(error.stderr or "")) from None
    except BuildBackendException as error:
        cause = error.exception
        said = str(cause.output) if isinstance(cause, subprocess.CalledProcessError) else str(cause)
        raise _failed(folder, said) from None
    except (BuildException, tarfile.TarError, OSError) as error:
        raise _failed(folder, str(error)) from None


def _run_hook(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
    """A step of a build: its output is kept for an error, and it does not get the hub's token."""
    environment = {key: value for key, value in os.environ.items() if key != TOKEN_VARIABLE}
    environment.setdefault("SOURCE_DATE_EPOCH", EPOCH)
    subprocess.run(
        cmd,
        cwd=cwd,
        env={**environment, **(extra_environ or {})},
        check=True,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _failed(folder: Path, said: str) -> ConfigError:
    lines = [safe_text(line) for line in said.splitlines() if line.strip()][-12:]
    return ConfigError("\n".join([f"{folder} could not be built. The build said:", *lines]))


def unpack(sdist: Path, target: Path) -> None:
    """The files of an sdist, without its top folder, into `target`, which has none of them.

    Raises `FileExistsError`, and `ConfigError` for a name that leads outside.
    """
    with tarfile.open(sdist) as tar:
        for member in tar:
            inside = member.name.partition("/")[2]
            if inside and member.isfile():
                path = target / inside
                if ".." in Path(inside).parts or Path(inside).is_absolute():
                    raise ConfigError(f"{sdist.name} has {safe_text(member.name)}, which is outside of it.")
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None  # it is a file
                with content, path.open("xb") as file:
                    shutil.copyfileobj(content, file)


def _archive(kind: str, path: Path, files: tuple[tuple[str, int], ...]) -> BuiltArchive:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return BuiltArchive(kind, path, path.stat().st_size, digest, files)


def _warnings(tar: tarfile.TarFile) -> Iterable[str]:
    """The sdist has every file that the wheel has, under the names of the author."""
    for member in tar:
        inside = member.name.partition("/")[2]
        if member.isfile() and member.size > LARGE_BYTES:
            yield f"{inside} has {member.size / (1 << 20):.0f} MiB. Load data of this size from a dataset instead."
        content = tar.extractfile(member) if member.isfile() and member.size <= MOST_SEARCHED else None
        if content is not None:
            with content:
                text = content.read().decode("utf-8", errors="replace")
            for where, what in secrets_in(inside, text):
                yield f"{where}: {what}. A pushed secret is known to all who may read the environment."


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise ConfigError(f"the build made {len(files)} files {pattern}; exactly one is needed.")
    return files[0]
