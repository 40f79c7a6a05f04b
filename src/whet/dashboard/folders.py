"""The library of plain directories: training, imitation, evaluations and searches below some folders."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from whet.dashboard.data.files import read_object, read_text
from whet.dashboard.errors import DashboardError, no_such
from whet.dashboard.library import ENDED, LibraryRun, RunList, RunQuery, RunState, Viewer, What
from whet.errors import RunError, WhetError
from whet.parsing import as_number, as_whole, parse_toml
from whet.records.directory import METADATA, METRICS, RESULTS, RUN_CONFIG, SEARCH_CONFIG, STATUS
from whet.records.lock import state_of
from whet.records.sources import SourceKind, run_directories, source_at
from whet.records.stored import environment_names
from whet.records.tail import FileStamp, file_stamp, last_row

WALK_SECONDS = 2.0
"""How old the list of directories may be."""
RECENTLY = 30.0
"""Seconds for which a run that ended still counts as current."""
STATES: dict[str, tuple[RunState, str]] = {
    "starting": ("starting", ""),
    "running": ("running", ""),
    "finished": ("finished", ""),
    "failed": ("failed", ""),
    "interrupted": ("stopped", "interrupted; it can be resumed"),
    "died": ("failed", "its process ended without a result; it can be resumed"),
    "unfinished": ("stopped", "it did not end; the same command continues it"),
}
"""What the files of a run call its state: the state of the library, and what to say about it."""
_HASHED = re.compile(r"[0-9a-f]{8}")
"""What an evaluation's folder is called where no name was given: it says nothing."""
STAMPED = (RUN_CONFIG, STATUS, METADATA, RESULTS, METRICS)
"""Files whose change changes what the list says of a run."""


@dataclass(frozen=True, slots=True)
class _RunDirectory:
    path: Path
    kind: SourceKind


class FolderLibrary:
    """Every run below `folders`, for everyone that can reach the server. Nothing is written."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = [folder.absolute() for folder in folders]
        self._lock = threading.Lock()
        self._walked = float("-inf")
        self._by_id: dict[str, _RunDirectory] = {}
        self._known: dict[str, tuple[tuple[object, ...], LibraryRun]] = {}
        """Runs that have ended, with the stamps of their files."""

    def runs(self, viewer: Viewer, query: RunQuery) -> RunList:
        try:
            start = int(query.cursor or 0)
        except ValueError:
            raise DashboardError("invalid", "cursor: it is none of this list. Begin again without it.") from None
        wanted = [run for run in self._all() if _fits(run, query)]
        wanted.sort(key=lambda run: (run.updated_at or 0.0, run.id), reverse=True)
        stop = max(start, 0) + query.limit
        return RunList(wanted[max(start, 0) : stop], str(stop) if stop < len(wanted) else None)

    def run(self, viewer: Viewer, id: str) -> LibraryRun:
        run = self.look(id)
        if run is None:
            raise no_such("run of this name")
        return run

    def current(self) -> Sequence[LibraryRun]:
        limit = time.time() - RECENTLY
        return [run for run in self._all() if not run.ended or (run.ended_at or 0.0) > limit]

    def look(self, id: str) -> LibraryRun | None:
        directory = self._directories().get(id) or self._directories(now=True).get(id)
        return None if directory is None else self._read(id, directory)

    def make(self, run: LibraryRun, step: int, what: What) -> NoReturn:
        """Nothing is made of checkpoints here (`LibraryRun.makes` is empty): `whet train export` does that."""
        raise no_such(f"{what} of step {step}")

    def sees(self, viewer: Viewer, run: LibraryRun) -> bool:
        return True

    def _all(self) -> list[LibraryRun]:
        read = (self._read(id, directory) for id, directory in self._directories().items())
        return [run for run in read if run is not None]

    def _directories(self, *, now: bool = False) -> dict[str, _RunDirectory]:
        with self._lock:
            if now or time.monotonic() - self._walked > WALK_SECONDS:
                directories = {}
                for folder in self.folders:
                    for path, kind in run_directories(folder):
                        directories[identity(path)] = _RunDirectory(path, kind)
                self._by_id = directories
                self._known = {id: kept for id, kept in self._known.items() if id in directories}
                self._walked = time.monotonic()
            return self._by_id

    def _read(self, id: str, directory: _RunDirectory) -> LibraryRun | None:
        """The run in a directory; None where the directory is gone."""
        path = directory.path
        stamps = tuple(file_stamp(path / name) for name in STAMPED)
        kept = self._known.get(id)
        if kept is not None and kept[0] == stamps:
            return kept[1]
        if not path.is_dir():
            return None
        try:
            run = _training(id, path) if directory.kind == "training" else _other(id, directory)
        except (WhetError, OSError, ValueError) as error:
            reason = f"cannot be read: {error}"
            run = LibraryRun(id, path.name, _kind(directory.kind), "unknown", path, reason=reason, trusted=True)
        if run.state in ENDED:
            self._known[id] = (stamps, run)
        return run


def identity(path: Path) -> str:
    """Of the run in a directory, for URLs: the same whenever the server is started."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name).strip("-.") or "run"
    return f"{name[:60]}-{hashlib.sha256(str(path).encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def _kind(kind: SourceKind, config: Mapping[str, Any] | None = None) -> Any:
    return "sft" if kind == "training" and config is not None and "data" in config else kind


def _fits(run: LibraryRun, query: RunQuery) -> bool:
    if (
        query.kind not in (None, run.kind)
        or query.state not in (None, run.state)
        or query.owner not in (None, run.owner)
    ):
        return False
    text = f"{run.name} {run.model} {' '.join(run.environments)} {run.directory}"
    return query.search.casefold() in text.casefold()


def _training(id: str, path: Path) -> LibraryRun:
    config = _config(path, file_stamp(path / RUN_CONFIG))
    status = read_object(path, STATUS)
    state, reason = STATES.get(state_of(path, status), ("unknown", "it has no status.json"))
    row = last_row(path, METRICS)
    ended = _seconds(status.get("ended"))
    return LibraryRun(
        id=id,
        name=str(config.get("name") or path.name),
        kind=_kind("training", config),
        state=state,
        directory=path,
        config_file=path / RUN_CONFIG,
        process=_process(status),
        trusted=True,
        model=str(config.get("model") or ""),
        environments=tuple(environment_names(config)),
        by_client="tinker" in config,
        owner=_owner(config),
        reason=str(status.get("last_error") or reason),
        step=as_whole(status.get("step")) or as_whole(row.get("step")) or 0,
        max_steps=as_whole(config.get("max_steps")) or as_whole(status.get("max_steps")),
        reward=as_number(row.get("reward/mean")),
        started_at=_seconds(status.get("started")),
        ended_at=ended,
        updated_at=ended or _seconds(status.get("heartbeat")) or _modified(path / RUN_CONFIG),
        details={"path": str(path)},
    )


def _owner(config: Mapping[str, Any]) -> str:
    """Of a model of `whet tinker serve`; other folders do not say whose they are."""
    model = config.get("tinker")
    return str(model.get("owner") or "") if isinstance(model, Mapping) else ""


@lru_cache(maxsize=256)
def _config(path: Path, stamp: FileStamp | None) -> Mapping[str, Any]:
    """The config, parsed once for one state of its file: a run in progress is read every second."""
    try:
        return parse_toml(read_text(path, RUN_CONFIG))
    except ValueError as error:
        raise RunError(f"{path / RUN_CONFIG}: not TOML ({error})") from None


def _process(status: Mapping[str, Any]) -> tuple[int, str] | None:
    pid, began, host = status.get("pid"), status.get("process_began"), status.get("host")
    here = host in (None, socket.gethostname())
    return (pid, began) if here and isinstance(pid, int) and pid > 0 and isinstance(began, str) else None


def _other(id: str, directory: _RunDirectory) -> LibraryRun:
    """An evaluation or a search for prompts."""
    source = source_at(directory.path)
    state, reason = STATES.get(source.state, ("finished" if source.state == "" else "unknown", source.state))
    updated = _seconds(source.date) or _modified(directory.path)
    known = {key: value for key in ("num_examples", "rollouts_per_example") if (value := source.metadata.get(key))}
    config = directory.path / (SEARCH_CONFIG if directory.kind == "search" else RUN_CONFIG)
    if isinstance(share := source.metadata.get("avg_error"), float) and 0 <= share <= 1:
        known["failed"] = share
    hashed = _HASHED.fullmatch(directory.path.name) and source.environment
    run = LibraryRun(
        id=id,
        name=" with ".join(filter(None, (source.environment, source.model))) if hashed else directory.path.name,
        kind=directory.kind,
        state=state,
        directory=directory.path,
        config_file=config if config.is_file() else None,
        trusted=True,
        model=source.model,
        environments=(source.environment,) if source.environment else (),
        reason=source.note or reason,
        reward=source.reward,
        updated_at=updated,
        details={"path": str(directory.path), "rollouts": source.count, **known},
    )
    return replace(run, ended_at=updated) if run.ended else run


def _seconds(date: Any) -> float | None:
    """Seconds since 1970 of a date; one without a zone is in local time."""
    try:
        return datetime.fromisoformat(date).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _modified(path: Path) -> float | None:
    stamp = file_stamp(path)
    return None if stamp is None else stamp.modified / 1e9
