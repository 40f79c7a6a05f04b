"""Runs that were started before: what their files say, finding one by its name, and the list of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from whet.display.text import print_fact, print_rows
from whet.errors import RunError, WhetError
from whet.parsing import parse_json
from whet.records.directory import STATUS
from whet.records.lock import RESUMABLE
from whet.system.terminal import safe_text
from whet.system.untrusted import open_path

RUNS = Path("runs")
RunT = TypeVar("RunT")
DAMAGED = (OSError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""What files of other contents than whet's own can lead to."""
LONGEST_COMMAND = 4000
"""Characters of a command that a list shows."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run's directory with its config and its status; other files are read on demand."""

    directory: Path
    config: Mapping[str, Any] = field(repr=False)
    status: Mapping[str, Any] = field(repr=False)
    state: str  # `died`: the status says that it runs, and no process does; `unknown` without a status
    fault: str | None = field(default=None, kw_only=True)  # why one that is listed nevertheless cannot be read

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.directory.name)

    @property
    def model(self) -> str:
        return str(self.config.get("model") or "?")

    @property
    def resumable(self) -> bool:
        """False for a run that is running, or done."""
        return self.state in RESUMABLE


def read_status(directory: Path) -> dict[str, Any]:
    """What `status.json` of a training run says; empty where there is none. Raises `RunError` for what is not JSON."""
    path = directory / STATUS
    try:
        if not path.is_file():  # a pipe would be waited for
            return {}
        with open_path(path) as file:
            status = parse_json(file.read())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RunError(f"{path}: not JSON ({error}). Remove it; the run resumes without it.") from None
    return status if isinstance(status, dict) else {}


def as_far_as_possible(path: Path, read: Callable[[], RunT], damaged: Callable[[str], RunT]) -> RunT:
    """What `read` returns or, of a directory in which anything may be, `damaged(why it cannot be read)`."""
    try:
        return read()
    except WhetError as error:
        return damaged(str(error))
    except DAMAGED as error:
        return damaged(f"{path}: its files are not those of whet ({type(error).__name__}: {error})")


def environment_names(config: Mapping[str, Any]) -> list[str]:
    """The environments of a training config, by their names in metrics and rows."""
    sections = config.get("env")
    tables = [section for section in sections if isinstance(section, Mapping)] if isinstance(sections, list) else []
    return [str(section.get("name") or Path(str(section.get("id", "?"))).name) for section in tables]


def resolve(run: str | Path, is_run: Callable[[Path], bool], *, noun: str, made: str, commands: str) -> Path:
    """The directory of a run: the one named, or that of this name below runs/. Raises `RunError` where there is none.

    The error says that it is no directory `made` as such a run is; `commands list` shows those there are.
    """
    for path in (Path(run), RUNS / run):
        if is_run(path):
            return path
    here = sorted(path.name for path in RUNS.glob("*") if is_run(path))
    near = difflib.get_close_matches(str(run), here, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"`{commands} list` shows what there is."
    raise RunError(f"there is no {noun} {str(run)!r}: neither a directory {made} nor a {noun} in {RUNS}/. {hint}")


def check_folder(folder: Path, commands: str, default: Path = RUNS) -> None:
    """Raise `RunError` where a list is to be made of a folder that is not there."""
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder. `{commands} run` makes {default}/; name yours.")


def print_list(
    rows: Sequence[Mapping[str, str]],
    right: set[str],
    remarks: Iterable[tuple[str | None, str | None]],
    console: Console,
) -> None:
    """A table with a row for each run, then `remarks`: what is damaged of it, and the command that continues it."""
    print_rows(rows, console, right)
    for fault, resume in remarks:
        for label, text in (("damaged", fault), ("continue", resume)):
            if text:
                print_fact(label, safe_text(text, LONGEST_COMMAND), console, fold=False)
