"""Whether wheels contain only files of their own: checked before pip unpacks them.

pip overwrites existing files, and a file `NAME.pth` in site-packages is run by every Python that
starts there. Nothing is unpacked or imported here.
"""

from __future__ import annotations

import configparser
import contextlib
import importlib.machinery
import importlib.metadata
import os
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from whet.errors import ConfigError

OURS = ("verifiers", "whet")  # the library that the alias replaces, and this one, wherever it is imported from
COMMON = ("docs", "examples", "test", "tests")  # which many packages carry by mistake, and nothing imports
AT_START = ("sitecustomize", "usercustomize")  # modules that every Python imports when it starts
LAST = 9
SCHEMES = ("purelib", "platlib", "scripts", "data", "headers")


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a wheel."""

    inside: str  # its name in the archive
    path: Path  # where pip would write it
    module: str | None  # the top-level module that it is part of, if it is one


def check_wheels(wheels: Sequence[Path], behind: Sequence[str] = ()) -> None:
    """Raises `ConfigError` for the first that would write over, or stand before, what is not its own.

    `behind`: folders of packages that imports search after those that are installed into.
    """
    claimed: dict[Path, tuple[str, bytes]] = {}
    for wheel in wheels:
        name, version, *_ = parse_wheel_filename(wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            for problem in _problems(archive, name, claimed, behind):
                raise ConfigError(
                    f"{name} {version} was not installed, since its wheel {problem}. If that is right and you trust "
                    f"it, install it by hand: python -m pip install {name}=={version}"
                )


def _problems(
    archive: zipfile.ZipFile, name: str, claimed: dict[Path, tuple[str, bytes]], behind: Sequence[str]
) -> Iterator[str]:
    own = _own_files(name)
    sites = {_target("purelib"), _target("platlib")}
    foreign = _added_folders(sites, own)
    modules: dict[str, int] = {}
    for file in _files(archive):
        if ".." in file.path.parts or not file.path.is_absolute():
            yield f"has {file.inside}, which is outside of it"
        if file.path.suffix.lower() == ".pth" and file.path.parent in sites:
            yield f"carries {file.inside}, which every Python that starts here would run"
        content = archive.read(file.inside)
        other, same = claimed.setdefault(file.path, (name, content))
        if other != name and same != content:
            yield f"has {file.path.name}, which is a file of {other} too ({file.path})"
        if os.path.lexists(file.path) and file.path not in own and not _holds(file.path, content):
            yield f"would replace {file.path}, a file of {_owner_of(file.path)}"
        if file.module not in (None, *COMMON):
            for hidden in (Path(folder, file.path.relative_to(_target("purelib"))) for folder in behind):
                if os.path.lexists(hidden) and hidden not in own and not _holds(hidden, content):
                    yield f"would hide {hidden}, a file of {_owner_of(hidden)}"
        if file.module:
            modules[file.module] = min(_rank(file.path, sites), modules.get(file.module, LAST))
    for module in sorted(modules):
        if module.lower() in AT_START:
            yield f"carries {module}, which every Python that starts here would run"
        if module in OURS:
            yield f"carries a package {module}, which hides whet's own"
        searched = foreign if module in COMMON else [*foreign, *behind]
        there = importlib.machinery.PathFinder.find_spec(module, searched)
        beside = importlib.machinery.PathFinder.find_spec(module, list(map(str, sites)))
        if there is not None and there.origin is not None:
            yield f"carries a package {module}, which hides {there.origin}"
            continue
        origin = None if beside is None or beside.origin is None else Path(beside.origin)
        if origin is not None and origin not in own and modules[module] < _rank(origin, sites):
            yield f"carries a package {module}, which hides {origin}"
    for script in _scripts(archive):
        path = _target("scripts") / script
        if os.path.lexists(path) and path not in own:
            yield f"would replace the command {script}, which is of {_owner_of(path)}"


def _rank(path: Path, sites: set[Path]) -> int:
    """How early an import takes a file of one folder: a package first, then a compiled module, then a plain one."""
    if path.parent.parent in sites and path.name.partition(".")[0] == "__init__":
        return 0
    if path.parent not in sites:
        return LAST
    return 1 if path.suffix in (".so", ".pyd") else 2


def _files(archive: zipfile.ZipFile) -> Iterator[_File]:
    site = _target("purelib")
    for inside in archive.namelist():
        first, _, rest = inside.partition("/")
        if inside.endswith("/") or first.endswith(".dist-info"):
            continue
        scheme = "purelib"
        if first.endswith(".data"):
            scheme, _, rest = rest.partition("/")
            if scheme not in SCHEMES:
                continue  # pip refuses it
        else:
            rest = inside
        path = Path(os.path.normpath(_target(scheme) / rest)) if ".." not in Path(rest).parts else Path("..", rest)
        top = path.relative_to(site).parts[0] if path.is_relative_to(site) else None
        yield _File(inside, path, top.partition(".")[0] if top else None)


def _target(scheme: str) -> Path:
    """The folder of an installation's scheme in this Python."""
    return Path(sysconfig.get_path({"headers": "include"}.get(scheme, scheme)))


def _own_files(name: str) -> set[Path]:
    """What an installed version of the same package has, which the new one replaces."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return set()
    return {Path(os.path.normpath(str(distribution.locate_file(file)))) for file in distribution.files or ()}


def _added_folders(sites: set[Path], own: set[Path]) -> list[str]:
    """The folders that .pth files of others add, as installations with `-e` do: they come after the site's packages."""
    folders = []
    for site in sites:
        for path in sorted(site.glob("*.pth")):
            if path not in own:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                folders += [line.strip() for line in lines if Path(line.strip()).is_absolute()]
    return folders


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _owner_of(path: Path) -> str:
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.name == path.name and Path(os.path.normpath(str(distribution.locate_file(file)))) == path:
                return str(canonicalize_name(distribution.metadata["Name"] or "?"))
    return "something else"


def _scripts(archive: zipfile.ZipFile) -> list[str]:
    """The commands that pip would write for its entry points."""
    listed = [name for name in archive.namelist() if name.lower().endswith(".dist-info/entry_points.txt")]
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    for name in listed:
        with contextlib.suppress(configparser.Error, UnicodeDecodeError):
            parser.read_string(archive.read(name).decode("utf-8"))
    groups = [group for group in ("console_scripts", "gui_scripts") if parser.has_section(group)]
    return [name for group in groups for name in parser.options(group)]
