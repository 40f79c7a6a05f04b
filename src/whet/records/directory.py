"""The directory that a process writes a run into: locked from `_taken` to `close`, its metadata always whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar

from whet.errors import RunError, WhetError
from whet.parsing import parse_json
from whet.records.lock import DirectoryLock
from whet.system.files import json_line, sync, write_whole
from whet.system.untrusted import open_path

RUN_CONFIG, STATUS, ROLLOUTS = "config.toml", "status.json", "rollouts"
METRICS, EVALS, ERRORS, LEDGER = "metrics.jsonl", "evals.jsonl", "errors.jsonl", "ledger.jsonl"
"""What a training run writes."""
METADATA, RESULTS = "metadata.json", "results.jsonl"
"""What an evaluation writes; a search has its results in `rollouts/`."""
SEARCH_CONFIG, CANDIDATES = "gepa.toml", "candidates.jsonl"
CALLS, REFLECTIONS = "calls.jsonl", "reflections.jsonl"
SWEEP = "sweep.json"
"""What a sweep of training writes; each of its trials is a run of its own."""
REPORT = "report.html"
"""Of a training run, an evaluation or a search."""
MOST_ROWS = 1000
"""Rows of a report's table of tasks or examples."""


class OwnedDirectory:
    """`runs/<name>/`, which one process at a time writes into."""

    doing: ClassVar[str]
    """What the owner does, for the error that another process gets: "training in"."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: DirectoryLock | None = None

    @contextmanager
    def _taken(self, *, resume: bool) -> Iterator[None]:
        """Make the directory, or with `resume` keep the one there is, lock it, and write its first files inside.

        Raises `RunError` where another process has it, and where it cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=resume)
            self._lock = DirectoryLock(self.path, self.doing)
            yield
        except OSError as error:
            raise RunError(f"cannot make the run directory {self.path}: {error.strerror or error}.") from error

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def free_path(folder: Path, name: str) -> Path:
    """The first of `name`, `name-2`, `name-3`, ... that is not in a folder."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(path for one in names if not (path := folder / one).exists())


def write_metadata(directory: Path, fields: Mapping[str, Any]) -> None:
    """Replace `metadata.json`; it survives a loss of power."""
    write_whole(directory / METADATA, json.dumps(json.loads(json_line(fields)), indent=2) + "\n")
    sync(directory)


def failure_message(error: BaseException, directory: Path) -> str | None:
    """The message for the user about what ended a run in `directory`; None for an error that is a fault of whet."""
    if isinstance(error, WhetError):
        return str(error)
    if isinstance(error, OSError) and error.filename and Path(error.filename).is_relative_to(directory):
        return f"cannot write {error.filename}: {error.strerror}. Make room or repair the disk, then --resume."
    return None


def load_metadata(directory: Path) -> dict[str, Any] | None:
    """What `metadata.json` says, None where there is none. Raises `RunError` for what is not a JSON object."""
    path = directory / METADATA
    if not path.exists():
        return None
    try:
        with open_path(path) as file:
            metadata = parse_json(file.read())
    except ValueError as error:
        raise RunError(f"{path} is not JSON ({error}). Give a new results_path.") from error
    if not isinstance(metadata, dict):
        raise RunError(f"{path} is not a JSON object. Give a new results_path.")
    return metadata


def write_page(directory: Path, page: str) -> Path:
    """Write `report.html` into a run's directory and return its path."""
    path = directory / REPORT
    write_whole(path, page, durable=False)
    return path


def report_or_note(write: Callable[[Path], Path], directory: Path, note: Callable[[str], None]) -> Path | None:
    """The report that a run ends with. One that cannot be written is noted; the results matter more than the page."""
    try:
        return write(directory)
    except (OSError, WhetError) as error:
        note(f"no report was written: {error}")
        return None
