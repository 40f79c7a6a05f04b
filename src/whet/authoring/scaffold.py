"""`whet env init`: write a package that runs at once, from the templates in this folder.

A template is a working environment by the name `my-env`; its copy differs in the name alone. The folder appears whole
or not at all. An id is a package's name (`word-game`); module and folder have underscores for the dashes (`word_game`).

`whet lab setup`: a folder to work in, with examples of configs and environments. What is there is not changed.
"""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import tomli_w

from whet.envs.loading import LOCAL_FOLDER
from whet.errors import ConfigError

Kind = Literal["single", "multi", "tool", "sandbox", "taskset"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TEMPLATES = Path(__file__).parent / "templates"
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RESERVED = frozenset({"environments", "setup", "site", "test", "tests", "verifiers", "whet"})
MAX_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Names:
    """The spellings of one name."""

    id: str  # word-game
    module: str  # word_game; also the folder
    cls: str  # WordGameEnv


_TEMPLATE = Names("my-env", "my_env", "MyEnv")


@dataclass(frozen=True, slots=True)
class Scaffold:
    """What was written, and what to type next."""

    id: str
    kind: Kind
    folder: Path
    files: tuple[str, ...]  # below the folder
    commands: tuple[str, ...]  # each a line for the shell, from the directory where the package was made


def init_package(name: str, kind: Kind = "single", parent: Path | None = None) -> Scaffold:
    """Write the package of a new environment into a folder of its name.

    Args:
        name: The environment's id, such as `word-game`.
        kind: Which template it begins with.
        parent: Folder to make the package's folder in; `environments/` by default, where ids are found without
            installation.

    Raises `ConfigError` for a name that cannot be used or is taken, and for a folder that exists.
    """
    names = names_of(name)
    parent = Path(LOCAL_FOLDER) if parent is None else parent
    folder = parent / names.module
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} exists already. Choose another name, or remove it.")
    if importlib.util.find_spec(names.module) is not None:
        raise ConfigError(
            f"a Python module '{names.module}' is installed already, and the environment would be taken for it. "
            "Choose another name."
        )
    files = _contents(kind, names, reference := _reference(names, folder))
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _write(folder, files)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{parent} is not a folder, so nothing can be made in it. Give another --path.") from None
    return Scaffold(names.id, kind, folder, tuple(sorted(files)), _commands(reference, folder))


def names_of(name: str) -> Names:
    """The spellings of `name`, whose words dashes or underscores divide.

    Raises `ConfigError` for a name that cannot be used.
    """
    env_id = name.replace("_", "-")
    if not _ID.fullmatch(env_id) or len(env_id) > MAX_LENGTH:
        proposal = "-".join(re.findall(r"[a-z0-9]+", name.lower())).lstrip("0123456789-")[:MAX_LENGTH].rstrip("-")
        hint = f" For example: {proposal}" if _ID.fullmatch(proposal) else ""
        raise ConfigError(
            f"'{name}' cannot be the name of an environment: use at most {MAX_LENGTH} lower-case letters, digits and "
            f"single dashes, with a letter first.{hint}"
        )
    module = env_id.replace("-", "_")
    if keyword.iskeyword(module):
        raise ConfigError(f"'{name}' is a word of Python's own, so no module can have that name. Choose another.")
    if module in sys.stdlib_module_names:
        raise ConfigError(f"'{name}' is a module of Python's standard library, which would hide it. Choose another.")
    if module in _RESERVED:
        raise ConfigError(f"'{name}' means something else to whet or to Python's tools. Choose another.")
    cls = "".join(part.capitalize() for part in env_id.split("-"))
    return Names(env_id, module, cls if cls.endswith("Env") else f"{cls}Env")


def _reference(names: Names, folder: Path) -> str:
    """What whet finds the environment by, from here: its id, or its path."""
    if folder.parent.resolve() == Path(LOCAL_FOLDER).resolve():
        return names.id
    return str(folder) if len(folder.parts) > 1 else f"./{folder}"


def _contents(kind: Kind, names: Names, reference: str) -> dict[str, str]:
    """The files of the package by their paths in it."""
    template = TEMPLATES / kind
    spellings = {_TEMPLATE.id: names.id, _TEMPLATE.module: names.module, _TEMPLATE.cls: names.cls}
    environment = {tomli_w.dumps({"id": _TEMPLATE.id}): tomli_w.dumps({"id": reference})}
    contents = {}
    for path in sorted(template.rglob("*")):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        replacements = {**environment, **spellings} if path.name == "train.toml" else spellings
        contents[_replaced(str(path.relative_to(template)), spellings)] = _replaced(text, replacements)
    return contents


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    """All replacements in one pass: a new name may contain the old one."""
    pattern = re.compile("|".join(re.escape(old) for old in replacements))
    return pattern.sub(lambda match: replacements[match[0]], text)


def _write(folder: Path, files: dict[str, str]) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, text in files.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        aside.chmod(0o755)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _commands(reference: str, folder: Path) -> tuple[str, ...]:
    pytest = "python -m pytest" if importlib.util.find_spec("pytest") else "pip install pytest && python -m pytest"
    typed = shlex.quote(reference)
    return (
        f"whet eval run {typed} -n 4",
        f"whet train run {shlex.quote(str(folder / 'train.toml'))}",
        f"{pytest} {shlex.quote(str(folder))}",
        f"whet env check {typed}",
    )


Template = Literal["examples", "empty"]
OF_THE_WORKSPACE = {"README.md": "README.md", "env.example": ".env.example", "gitignore": ".gitignore"}
ENDPOINTS = "configs/endpoints.toml"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*", "dist", "build", "outputs", "runs")


@dataclass(frozen=True, slots=True)
class Workspace:
    """What was written into a folder, and what was there before and kept; paths below the folder."""

    folder: Path
    written: tuple[str, ...]
    kept: tuple[str, ...]


def set_up(folder: Path, template: Template = "examples") -> Workspace:
    """Write what a workspace needs and `folder` does not have.

    Args:
        folder: Made if missing.
        template: `examples` brings every example's config and environment, `empty` only the folders and settings.
    """
    written, kept = [], []
    for source, inside in _files(template):
        target = folder / inside
        if os.path.lexists(target):
            kept.append(str(inside))
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        written.append(str(inside))
    for name in ("configs/rl", "configs/eval", "configs/gepa", LOCAL_FOLDER):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return Workspace(folder, tuple(written), tuple(kept))


def examples_folder() -> Path:
    """What holds `configs/` and `environments/`: in an installed whet its own data, in a checkout the checkout."""
    packaged = Path(__file__).parent / "examples"
    return packaged if packaged.is_dir() else Path(__file__).parents[3]


def _files(template: Template) -> Iterator[tuple[Path, Path]]:
    """Each file and where it goes, below the workspace."""
    for name, inside in OF_THE_WORKSPACE.items():
        yield TEMPLATES / "workspace" / name, Path(inside)
    examples = examples_folder()
    if template == "empty":
        yield examples / ENDPOINTS, Path(ENDPOINTS)
        return
    for top in ("configs", LOCAL_FOLDER):
        yield from _below(examples / top, Path(top))


def _below(folder: Path, inside: Path) -> Iterator[tuple[Path, Path]]:
    names = sorted(os.listdir(folder))
    ignored = _LEFT_OUT(str(folder), names)
    for name in names:
        if name not in ignored:
            path = folder / name
            if path.is_dir():
                yield from _below(path, inside / name)
            else:
                yield path, inside / name
