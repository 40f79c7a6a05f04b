"""The files of a submission: what a config names on this machine, under relative names that it has on the server."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.authoring.review.about_files import KEY_FILES, secrets_in
from whet.errors import ConfigError
from whet.records.directory import RUN_CONFIG
from whet.system.files import expanded
from whet.system.terminal import safe_text

FILE_BYTES = 50 << 20
"""Of one file: what the service takes."""
TOTAL_BYTES = 200 << 20
MOST_FILES = 1_000
INSTEAD = "Put the data into the environment's package, or into a dataset on the Hugging Face hub"
LEFT_OUT = ("__pycache__", ".git", ".venv")
MOST_SEARCHED, MOST_WARNINGS = 1 << 20, 5
NOT_DATA = ("checkpoints", "exports", "model", "adapter", "set_aside", "logs")
"""Folders of a run that hold no rows."""


@dataclass(frozen=True, slots=True)
class SubmittedFile:
    """A file's content, on disk or made here."""

    source: Path | bytes
    size: int
    sha256: str

    def content(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


class SubmissionFiles:
    """Collects files by the name that each has below `submission/`."""

    def __init__(self) -> None:
        self.by_name: dict[str, SubmittedFile] = {}
        self._names: dict[Path, str] = {}  # of what was added before, so that it is sent once

    def add(self, path: Path, where: str, into: str = "files") -> str:
        """The name of a file or a folder of this machine in the submission. Raises `ConfigError` where it is too large.

        `where` is the key that names it, for messages.
        """
        path = expanded(path).resolve()
        if path not in self._names:
            name = self._free(f"{into}/{path.name}")
            files = list(_below(path)) if path.is_dir() else [(Path(), path)]
            if not files:
                raise ConfigError(f"{where}: {path} has no files to submit.")
            for inner, file in files:
                self._put((Path(name) / inner).as_posix(), file, where)
            self._names[path] = name
        return self._names[path]

    def add_as(self, name: str, source: Path | bytes, where: str) -> None:
        """A file under exactly this name. Raises `ConfigError` for another content of the same name."""
        before = self.by_name.get(name)
        self._put(name, source, where)
        if before is not None and before.sha256 != self.by_name[name].sha256:
            raise ConfigError(f"{where}: there are two files {name}. Rename one of them.")

    def warnings(self) -> list[str]:
        """What looks like a secret in these files; all who see the run can read them."""
        warnings = []
        for name, file in self.by_name.items():
            if file.size <= MOST_SEARCHED:
                text = file.content().decode("utf-8", errors="replace")
                warnings += [
                    f"{where}: {what}, which all who see the run can read" for where, what in secrets_in(name, text)
                ]
        return warnings[:MOST_WARNINGS]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.by_name.values())

    def _put(self, name: str, source: Path | bytes, where: str) -> None:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if KEY_FILES.fullmatch(Path(name).name):
            raise ConfigError(
                f"{where}: {safe_text(name)} is a file that is made to hold keys; all who see the run could read it. "
                "Give the value with --env-file."
            )
        shown = f"{where}: {safe_text(name if isinstance(source, bytes) else str(source))}"
        if size > FILE_BYTES:
            raise ConfigError(
                f"{shown} has {size / 2**20:.0f} MiB; a file of a submission has at most {FILE_BYTES >> 20}. {INSTEAD}."
            )
        try:
            content = source if isinstance(source, bytes) else source.read_bytes()
        except OSError as error:
            raise ConfigError(f"{shown} cannot be read ({error.strerror}).") from None
        self.by_name[name] = SubmittedFile(source, size, hashlib.sha256(content).hexdigest())
        if self.size > TOTAL_BYTES or len(self.by_name) > MOST_FILES:
            raise ConfigError(
                f"{shown}: the files of a submission have at most {TOTAL_BYTES >> 20} MiB and are at most "
                f"{MOST_FILES}. {INSTEAD}."
            )

    def _free(self, wanted: str) -> str:
        path, number, name = Path(wanted), 1, wanted
        while any(taken == name or taken.startswith(f"{name}/") for taken in self.by_name):
            number += 1
            name = path.with_name(f"{path.stem}-{number}{path.suffix}").as_posix()
        return name


def _below(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Every file of a folder by its name there; what a run keeps besides its rows is left out."""
    is_run = (folder / "rollouts").is_dir() and (folder / RUN_CONFIG).is_file()
    for file in sorted(folder.rglob("*")):
        inner = file.relative_to(folder)
        skipped = set(inner.parts[:-1]) & set(LEFT_OUT) or (is_run and inner.parts[0] in NOT_DATA)
        if file.is_file() and not skipped:
            yield inner, file


def with_files(value: Any, where: str, files: SubmissionFiles) -> Any:
    """An argument of an environment with the files in it submitted, and their new names in its place.

    A text is a file where it looks like one (it has a `/` or a suffix) and there is one. Raises `ConfigError` for a
    folder of this machine.
    """
    if isinstance(value, dict):
        return {key: with_files(item, f"{where}.{key}", files) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_files(item, f"{where}.{index}", files) for index, item in enumerate(value)]
    if not isinstance(value, str) or not 0 < len(value) < 1_000 or "\n" in value or "://" in value:
        return value
    path = expanded(value)
    try:
        is_file = path.is_file() and ("/" in value or bool(path.suffix))
        is_folder = path.is_dir() and value.startswith((".", "~", "/")) and path.resolve() != Path("/")
    except (OSError, ValueError):  # a text that no name of a file can be
        return value
    if is_file:
        return files.add(path, where)
    if is_folder:
        raise ConfigError(f"{where}: {value} is a folder of this machine, which the service does not have. {INSTEAD}.")
    return value


# Modules


def add_modules(reference: str, where: str, files: SubmissionFiles, own: frozenset[str] = frozenset()) -> None:
    """Submit the module of `package.module:name`, and the modules in the same folder that it imports.

    They are below `modules/`, which the run can import from. A module of whet, of the standard library, or of one of
    the submitted environments (`own`) is there without that. Raises `ConfigError` for one that is installed here.
    """
    module = reference.partition(":")[0]
    top = module.partition(".")[0]
    if ":" not in reference or top == "whet" or top in own or top in sys.stdlib_module_names:
        return
    module_file = _file_of(top)
    if module_file is None:
        raise ConfigError(f"{where}: '{reference}' cannot be imported: there is no module {top} on this machine.")
    if _installed(module_file):
        raise ConfigError(
            f"{where}: '{reference}' is in a package that is installed here, and the service may not have it. Put the "
            "function into a module of your own next to the config (PYTHONPATH=. finds it), or into the environment."
        )
    waiting, seen = [module_file], set[Path]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for file in _sources(one):
            files.add_as((Path("modules") / file.relative_to(one.parent)).as_posix(), file, where)
            if file.suffix == ".py":
                waiting += _neighbours(file, one.parent, where)


def _file_of(module: str) -> Path | None:
    """The file of a top-level module, or the folder of a package."""
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


def _installed(path: Path) -> bool:
    roots = {sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib", "platstdlib")}
    return any(path.is_relative_to(Path(root).resolve()) for root in roots if root)


def _sources(path: Path) -> list[Path]:
    """A module's file; of a package all files but what Python makes of them."""
    if path.is_file():
        return [path]
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix != ".pyc")
    return [file for file in files if not set(file.relative_to(path).parts) & set(LEFT_OUT)]


def _neighbours(file: Path, root: Path, where: str) -> Iterator[Path]:
    """The modules in `root` that a source file imports, found without running it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {file} is not Python: {error}.") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top == "whet":
                continue
            if (root / f"{top}.py").is_file():
                yield root / f"{top}.py"
            elif (root / top).is_dir() and top not in sys.stdlib_module_names:
                yield root / top
