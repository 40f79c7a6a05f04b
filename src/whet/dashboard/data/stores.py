"""The stores of rollouts that are open: few, and closed when no request has used one for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.dashboard.data.files import read_object
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun
from whet.records.directory import METADATA, RESULTS, ROLLOUTS
from whet.records.heads import IndexProgress
from whet.records.sources import RunSource, SourceKind, run_directories
from whet.records.store import Store
from whet.records.tail import file_stamp

MOST_OPEN = 16
IDLE_SECONDS = 60.0
INDEX_SECONDS = 0.1
"""Indexing in this process before a request is answered, of files that are small."""
MOST_SEARCHES = 4
MOST_FOUND = 50_000
SEARCH_SECONDS = 0.5
"""Looking through rollouts during one request."""


@dataclass(slots=True)
class RolloutSearch:
    """A text that is looked for, request by request."""

    numbers: list[int] = field(default_factory=list)
    looked: int = 0  # rollouts
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def full(self) -> bool:
        return len(self.numbers) >= MOST_FOUND


@dataclass(slots=True)
class OpenStore:
    """A store, and what requests need of it."""

    store: Store
    passed: float
    """Reward from which a rollout counts as passed."""
    opened: int
    users: int = 0
    used: float = 0.0
    searches: OrderedDict[str, RolloutSearch] = field(default_factory=OrderedDict)
    counted: dict[Any, Any] = field(default_factory=dict)
    """Totals and counts, which take some tenths of a second of a million rollouts; by query, for one stamp."""
    stamp: tuple[int, int] = (0, 0)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def progress(self) -> IndexProgress:
        """How far the index is; what was counted or found in another generation is dropped."""
        progress = self.store.poll(INDEX_SECONDS)
        with self.lock:
            stamp = (progress.generation, progress.rollouts)
            if stamp != self.stamp:
                if stamp[0] != self.stamp[0]:
                    self.searches.clear()
                self.stamp = stamp
                self.counted.clear()
        return progress

    def generation(self, progress: IndexProgress) -> str:
        """Another one whenever numbers of rollouts that were given out are void."""
        path = self.store.index_path
        kept = file_stamp(path) if path is not None else None
        return f"{progress.generation}-{self.opened if kept is None else kept.inode:x}"

    def search(self, text: str) -> RolloutSearch:
        """What has been found of a text so far, after looking a little further."""
        with self.lock:
            search = self.searches.setdefault(text, RolloutSearch())
            self.searches.move_to_end(text)
            while len(self.searches) > MOST_SEARCHES:
                self.searches.popitem(last=False)
        from whet.records.search import Query

        with search.lock:
            if not search.full:
                numbers, search.looked = self.store.search_some(Query(text), search.looked, SEARCH_SECONDS)
                search.numbers += numbers
        return search


class Stores:
    """Opens the store of a run when it is used; closes what has not been used for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, OpenStore] = OrderedDict()
        self._count = 0
        self.timer: threading.Timer | None = None
        """Closes idle stores; None where none is open."""
        self._closed = False

    @contextmanager
    def use(self, run: LibraryRun) -> Iterator[OpenStore]:
        """The store of a run. Raises `DashboardError` where it has no rollouts."""
        source, root = source_of(run)
        with self._lock:
            known = self._open.get(source.rollouts)
            if known is None:
                self._count += 1
                known = OpenStore(Store(source, root=root), source.passed, self._count)
                known.store.start()
                self._open[source.rollouts] = known
            self._open.move_to_end(source.rollouts)
            known.users += 1
        try:
            yield known
        finally:
            with self._lock:
                known.users -= 1
                known.used = time.monotonic()
                self._close_some(0 if self._closed else MOST_OPEN)
                self._wait()

    def _close_some(self, most: int, before: float = float("-inf")) -> None:
        for path, known in list(self._open.items()):
            if not known.users and (len(self._open) > most or known.used < before):
                del self._open[path]
                known.store.close()

    def _wait(self) -> None:
        """Close idle stores later."""
        if self.timer is None and self._open and not self._closed:
            self.timer = threading.Timer(IDLE_SECONDS, self._close_idle)
            self.timer.daemon = True
            self.timer.start()

    def _close_idle(self) -> None:
        with self._lock:
            self.timer = None
            self._close_some(MOST_OPEN, before=time.monotonic() - IDLE_SECONDS + 1e-3)
            self._wait()

    @property
    def open(self) -> int:
        """How many stores are open."""
        return len(self._open)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self.timer is not None:
                self.timer.cancel()
            self._close_some(0)


def source_of(run: LibraryRun) -> tuple[RunSource, Path]:
    """Where the rollouts of a run are, and the directory that they are not to lead out of.

    Raises `DashboardError` for a run that has none.
    """
    directory = run.directory
    if directory is None:
        raise DashboardError("not_found", f"{run.name} has no rollouts yet: it is {run.state}.")
    if run.kind == "sft":
        raise DashboardError("not_found", f"{run.name} imitates conversations; it has no rollouts.")
    kind: SourceKind = run.kind
    rollouts = directory / ROLLOUTS
    if kind == "search":
        rollouts /= RESULTS
    elif kind == "evaluation":
        rollouts = results_directory(directory) / RESULTS
    if file_stamp(rollouts) is None:
        raise DashboardError("not_found", f"{run.name} has no rollouts yet.")
    metadata = read_object(rollouts.parent, METADATA) if kind == "evaluation" else {}
    environment = ", ".join(run.environments)
    return RunSource(rollouts, kind, rollouts, environment, run.model, metadata=metadata), directory


def results_directory(directory: Path) -> Path:
    """Of an evaluation: the directory itself, or the newest one of its results below it."""
    if file_stamp(directory / RESULTS) is not None:
        return directory
    below = [path for path, kind in run_directories(directory) if kind == "evaluation"]
    return max(below, key=lambda path: _modified(path / RESULTS), default=directory)


def _modified(path: Path) -> int:
    stamp = file_stamp(path)
    return 0 if stamp is None else stamp.modified
