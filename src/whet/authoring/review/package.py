"""A package on disk: read without running any of it.

What is found is data for `about_files.py`. A package in a folder of its own is described by its pyproject.toml, an
installed one by its metadata.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from whet.authoring.review.findings import CODES
from whet.config import StrictModel, table_of, validate
from whet.envs.loading import Location
from whet.errors import ConfigError
from whet.evals.planning.toml_file import EvalDefaults
from whet.parsing import parse_toml

MAX_FILES = 2000
MAX_TEXT = 1 << 20  # bytes of a file
MAX_TEXTS = 64 << 20  # of all
SKIPPED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", "outputs", "runs"})
CHECK_TABLE, EVAL_TABLE = "[tool.whet.check]", "[tool.whet.eval]"


class CheckSettings(StrictModel):
    """`[tool.whet.check]` in a package's pyproject.toml: what a review should know about it."""

    reward_range: tuple[float, float] = Field((0.0, 1.0), description="Lowest and highest reward there can be.")
    ignore: dict[str, str] = Field(default_factory=dict, description="Codes of intended findings, with reasons.")

    @field_validator("reward_range")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not value[0] < value[1]:
            raise ValueError(f"the lowest reward comes first, got {list(value)}")
        return value

    @field_validator("ignore")
    @classmethod
    def _known(cls, value: dict[str, str]) -> dict[str, str]:
        for code, reason in value.items():
            if code not in CODES:
                raise ValueError(f"there is no code '{code}'; they are listed in docs/authoring.md")
            if not reason.strip():
                raise ValueError(f"'{code}' needs a reason")
        return value


@dataclass(frozen=True, slots=True)
class Package:
    """The files of a package on disk."""

    module: str
    path: Path  # of the module
    folder: Path | None  # that holds pyproject.toml
    name: str | None = None
    version: str | None = None
    description: str | None = None
    licensed: bool = False
    readme: str | None = None  # its text
    has_tests: bool = False
    requirements: tuple[str, ...] = ()
    eval_default: bool = False
    settings: CheckSettings = field(default_factory=CheckSettings)
    problem: str | None = None  # with pyproject.toml
    installed: bool = False  # as a wheel, so that its tests and its pyproject.toml are not there


def read_package(location: Location) -> Package:
    """The package of a module that `locate` found."""
    folder = project_folder(location.path)
    if folder is not None:
        return _from_folder(location, folder)
    distribution = _distribution(location.module)
    if location.root is None and distribution is not None:
        return _from_metadata(location, distribution)
    return Package(location.module, location.path, None)


def files_of(package: Package) -> tuple[dict[str, str], bool]:
    """The text of each file by its path, and whether that is all of them.

    A link is not followed, and what is no text, or too long, is an empty text.
    """
    top = package.folder or package.path
    if top.is_file():
        return {top.name: _text(top)}, True
    contents: dict[str, str] = {}
    left = MAX_TEXTS
    for path in _paths(top):
        if len(contents) >= MAX_FILES or left < 0:
            return contents, False
        text = contents[str(path.relative_to(top))] = _text(path)
        left -= len(text)
    return contents, True


def _paths(top: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(top):
        names[:] = sorted(name for name in names if name not in SKIPPED and not name.endswith(".egg-info"))
        for path in (Path(folder, name) for name in sorted(files)):
            if not path.is_symlink() and path.is_file():
                yield path


def project_folder(path: Path) -> Path | None:
    """The folder of the package's pyproject.toml: the module's folder, its parent, or the parent of `src`."""
    above = path.parent
    for folder in (path, above, above.parent if above.name == "src" else above):
        if (folder / "pyproject.toml").is_file():
            return folder
    return None


def _from_folder(location: Location, folder: Path) -> Package:
    given: dict[str, Any] = {"module": location.module, "path": location.path, "folder": folder}
    try:
        data = parse_toml((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Package(**given, problem=f"it cannot be read: {error}")
    project, tool = table_of(data, "project"), table_of(data, "tool")
    table = table_of(tool, "whet")
    settings, problem = CheckSettings(), None
    try:
        settings = validate(CheckSettings, table.get("check", {}), CHECK_TABLE)
        validate(EvalDefaults, table.get("eval", {}), EVAL_TABLE)
    except ConfigError as error:
        problem = str(error)
    unknown = sorted(set(table) - {"check", "eval"})
    if unknown:
        problem = f"[tool.whet] has no table '{unknown[0]}'; it has check and eval"
    return Package(
        **given,
        name=_word(project, "name"),
        version=_word(project, "version") or ("dynamic" if "version" in _words(project, "dynamic") else None),
        description=_word(project, "description"),
        licensed=bool(project.get("license") or any(folder.glob("LICEN[CS]E*"))),
        readme=next((_text(path) for path in sorted(folder.glob("README*"))), None),
        has_tests=any(folder.glob("tests/**/test_*.py")) or any(folder.glob("test_*.py")),
        requirements=_words(project, "dependencies"),
        eval_default="eval" in table or "eval" in table_of(tool, "verifiers"),
        settings=settings,
        problem=problem,
    )


def _word(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    return value if isinstance(value, str) else None


def _words(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _from_metadata(location: Location, distribution: importlib.metadata.Distribution) -> Package:
    metadata = distribution.metadata
    return Package(
        module=location.module,
        path=location.path,
        folder=None,
        name=metadata["Name"],
        version=metadata["Version"],
        description=metadata["Summary"],
        licensed=bool(metadata["License-Expression"] or metadata["License"] or metadata["License-File"]),
        readme=metadata.get_payload() if isinstance(metadata.get_payload(), str) else None,  # type: ignore[attr-defined]
        requirements=tuple(distribution.requires or ()),
        installed=True,
    )


def _distribution(module: str) -> importlib.metadata.Distribution | None:
    names = importlib.metadata.packages_distributions().get(module, [])
    return importlib.metadata.distribution(names[0]) if names else None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_TEXT:
            return ""
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
