"""Rollouts on disk: listed at once, read one at a time, searched; never all of them in memory.

    with open_store(Path("outputs/evals/gsm8k--whet--tiny/4c5cde0c")) as store:
        store.start()                                        # a large file is indexed in a process
        heads = store.heads(Filter(failed=False), Sort("reward", descending=True))
        store.row(heads[0].number)                           # the whole rollout
        for progress in store.search("therefore"):              # a piece at a time; stop when you like
            print(progress.done, progress.numbers)
        progress = store.poll()                              # now and then: index what was added

A store may be used by several threads. `poll` is quick; `heads`, `totals` and `counts` take up to a tenth of a second
with 200,000 rollouts; `row` as long as its line is long.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

from whet.errors import RunError
from whet.records.files import RolloutFiles, parse_row, read_at
from whet.records.heads import (
    EVERY_ROLLOUT,
    FILE_ORDER,
    HEAD,
    LINE,
    LINES,
    SOME_LINES,
    VARIETY,
    CountColumn,
    Filter,
    Head,
    IndexProgress,
    ListTotals,
    Sort,
    Variety,
    counts_query,
    numbers_query,
    totals_query,
)
from whet.records.index import Index, open_index
from whet.records.indexing import Indexer
from whet.records.search import LinePositions, Query, SearchFound, search
from whet.records.sources import RunSource, source_at
from whet.records.statistics import (
    GroupTotals,
    Histogram,
    HistogramColumn,
    groups_query,
    histogram_query,
    range_query,
)
from whet.system.children import start

IN_MEMORY = 8 << 20
"""Bytes of rollouts up to which the index is rebuilt each time, in memory, in this process."""
FIRST_SECONDS = 0.05
"""Seconds of indexing before a store is returned, so that its first screen has something to show."""
RAW_PIECE = 1 << 20
SEARCHED_AT_ONCE = 128
"""Lines of which `search_some` holds the positions."""


def open_store(path: Path) -> Store:
    """The rollouts at `path`: a results file, the directory of an evaluation or of a run, a file of a run's rollouts.

    Raises `RunError` where there is none of these, in a line that says what to name, and where it cannot be read.
    """
    try:
        return Store(source_at(path))
    except OSError as error:
        raise RunError(f"{error.filename or path}: {error.strerror or error}.") from None


class Heads(Sequence[Head]):
    """A list of rollouts by their numbers; heads are made on access.

    It does not change while the index grows; get a new one from the store for what was added. Its numbers are void
    once `IndexProgress.generation` has grown.
    """

    def __init__(self, store: Store, numbers: Sequence[int]) -> None:
        self._store = store
        self.numbers = numbers
        """The rollouts' numbers, in the order of the list."""
        self._positions: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Head: ...
    @overload
    def __getitem__(self, index: slice) -> list[Head]: ...
    def __getitem__(self, index: int | slice) -> Head | list[Head]:
        if isinstance(index, slice):
            return [self._store.head(number) for number in self.numbers[index]]
        return self._store.head(self.numbers[index])

    def position(self, number: int) -> int | None:
        """The position of a rollout in the list; None if it is not in it."""
        if isinstance(self.numbers, range):  # a list of all: no dict of 200,000
            return number if number in self.numbers else None
        if self._positions is None:
            self._positions = {number: position for position, number in enumerate(self.numbers)}
        return self._positions.get(number)


class Store:
    """The rollouts of one evaluation, one training run or one search."""

    def __init__(self, source: RunSource, *, root: Path | None = None) -> None:
        """With `root`, a directory above the rollouts, what is below it is not trusted: links are not followed, and the
        index is not next to the rollouts. It is on disk then, so that numbers mean the same when it is opened again.
        """
        self.source = source
        """What is known without reading rollouts: path, kind, environment, model, metadata."""
        self._files = RolloutFiles(source.rollouts, root)
        self._lock = threading.RLock()
        self.process: subprocess.Popen[bytes] | None = None
        """The process that indexes, while it runs."""
        self._in_process = False
        self._failure: str | None = None
        size = sum(part.size for part in self._files.parts().values())
        on_disk = size > IN_MEMORY or root is not None
        self._index = open_index(source.rollouts, trusted=root is None) if on_disk else Index(None)
        try:
            self._begin()
        except sqlite3.OperationalError:  # no room, no lock: do without a file
            self._index.close()
            self._index = Index(None)
            self._begin()
        except sqlite3.DatabaseError:  # damaged
            self._index.replace()
            self._begin()

    @property
    def index_path(self) -> Path | None:
        """Where the index is; None in memory."""
        return self._index.path

    def _begin(self) -> None:
        self._indexer = Indexer(self._files, self._index)
        self._index_here(FIRST_SECONDS)

    def start(self) -> None:
        """From now on, index large files in a separate process, at low priority; `poll` indexes small ones."""
        self._in_process = True
        self.poll(0)

    def poll(self, seconds: float = 0.01) -> IndexProgress:
        """How far the index is, after about `seconds` of indexing in this process; detects files that changed."""
        with self._lock:
            if self._failure is None and not self._process_runs():
                try:
                    if not self._start_process():
                        self._index_here(seconds)
                except OSError as error:
                    self._failure = f"{error.filename or self._files.path}: {error.strerror or error}"
                except sqlite3.OperationalError as error:  # no room, no lock
                    self._failure = f"{self._index.path}: {error}"
                except sqlite3.DatabaseError as error:
                    self._failure = str(self._cannot_read(error))
            try:
                self._indexer.refresh()
            except sqlite3.Error as error:
                self._failure = self._failure or str(self._cannot_read(error))
            stamp = self._indexer.stamp
            assert stamp is not None  # since the store was opened
            return IndexProgress(
                rollouts=stamp.rollouts,
                damaged=stamp.damaged,
                bytes_done=self._indexer.done,
                bytes_total=sum(part.size for part in self._indexer.parts.values()),
                torn=self._indexer.torn,
                generation=stamp.generation,
                failure=self._failure,
            )

    def _index_here(self, seconds: float) -> None:
        self._indexer.check()
        self._indexer.index_some(seconds)

    def _start_process(self) -> bool:
        """Start a process that indexes what is left, if that is much."""
        path = self._index.path
        if not self._in_process or path is None:
            return False
        self._indexer.check()
        if self._indexer.left <= IN_MEMORY:
            return False
        root = [str(self._files.root)] if self._files.root is not None else []
        command = [sys.executable, "-P", "-m", "whet.records.indexing", str(self._files.path), str(path), *root]
        self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return True

    def _process_runs(self) -> bool:
        """Whether the indexing process is running; one that failed leaves its message in `_failure`."""
        process = self.process
        if process is None or process.poll() is None:
            return process is not None
        self.process = None
        _, said = process.communicate()
        if process.returncode != 0:
            reason = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            self._failure = f"indexing stopped: {reason or f'its process ended with {process.returncode}'}"
        return False

    def _select(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._index.select(query, {"default": self.source.environment or None, **parameters})
            except sqlite3.Error as error:
                raise self._cannot_read(error) from None

    def _cannot_read(self, error: sqlite3.Error) -> RunError:
        return RunError(f"{self._index.path}: the index cannot be used ({error}). Remove this file; it is rebuilt.")

    def heads(self, filter: Filter = EVERY_ROLLOUT, sort: Sort = FILE_ORDER) -> Heads:
        """The rollouts indexed so far that fit the filter, in order. No filter: all; no order: the files'."""
        several_files = self._files.path.is_dir()
        if not several_files and filter == EVERY_ROLLOUT and sort == FILE_ORDER:
            return Heads(self, range(self._select("SELECT rollouts FROM stamp")[0][0]))
        query, parameters = numbers_query(filter, sort, several_files=several_files)
        return Heads(self, [number for (number,) in self._select(query, **parameters)])

    def page(self, filter: Filter, sort: Sort, start: int, count: int) -> list[int]:
        """`count` numbers of `heads(filter, sort)` from `start` on, without making the list."""
        query, parameters = numbers_query(filter, sort, several_files=self._files.path.is_dir())
        window = {"count": count, "start": start}
        return [number for (number,) in self._select(f"{query} LIMIT :count OFFSET :start", **parameters, **window)]

    def head(self, number: int) -> Head:
        """One rollout of the list. An unknown number gives a head that says so."""
        for row in self._select(HEAD, number=number):
            return Head(*row)
        return Head(number, problem="no longer there: the file was changed")

    def totals(self, filter: Filter = EVERY_ROLLOUT) -> ListTotals:
        """Of the rollouts that fit the filter."""
        query, parameters = totals_query(filter)
        return ListTotals(*self._select(query, **parameters)[0])

    def variety(self) -> Variety:
        """Of all rollouts."""
        return Variety(*self._select(VARIETY)[0])

    def counts(self, column: CountColumn) -> dict[str, int]:
        """The values to filter by, with their numbers of rollouts: most frequent first, parts in order."""
        return dict(self._select(counts_query(column)))

    def group(self, number: int) -> list[int]:
        """All rollouts of the group this one belongs to, itself too, in order.

        A group: the rollouts of one task (in a run, of one step, or of one way of sampling in one evaluation).
        """
        query = "SELECT number FROM rollouts WHERE group_key = (SELECT group_key FROM rollouts WHERE number = :number)"
        return [number for (number,) in self._select(f"{query} ORDER BY number", number=number)]

    def groups(self, filter: Filter, start: int, count: int) -> list[GroupTotals]:
        """`count` groups of the rollouts that fit, from `start` on, in order."""
        query, parameters = groups_query(filter)
        return [GroupTotals(*row) for row in self._select(query, **parameters, start=start, count=count)]

    def histogram(self, column: HistogramColumn, filter: Filter, intervals: int) -> Histogram | None:
        """Of a column of the rollouts that fit; None where no rollout has a value."""
        query, parameters = range_query(column, filter)
        ranges = self._select(query, **parameters)
        if not ranges:
            return None
        low, high = float(min(row[1] for row in ranges)), float(max(row[2] for row in ranges))
        counts = {name: [0] * intervals for name, *_ in ranges}
        query, parameters = histogram_query(column, filter)
        window = {"low": low, "width": (high - low) / intervals or 1.0, "intervals": intervals}
        for name, interval, count in self._select(query, **parameters, **window):
            if name in counts:  # of very many environments, the first hundred
                counts[name][interval] = count
        return Histogram(low, high, counts, {name: mean for name, _, _, mean in ranges})

    def row(self, number: int) -> dict[str, Any]:
        """The rollout as it is in the file.

        Of a line above 8 MiB, texts and lists of numbers are cut, and `row["left_out_bytes"]` says by how much. Raises
        `RunError` for a line that is no rollout, and where the file was changed since (the next `poll` detects it).
        """
        where, line, problem = self._line(number)
        if problem:
            raise RunError(f"{where}: {problem}.")
        try:
            return parse_row(line)
        except ValueError as error:
            raise RunError(f"{where}: {error}.") from None

    def text(self, number: int, limit: int = 100_000) -> str:
        """The line as it is in the file, at most `limit` bytes of it: for one that is no rollout, say."""
        _, line, _ = self._line(number, limit)
        return line.decode("utf-8", "replace")

    def raw(self, number: int) -> tuple[int, Iterator[bytes]]:
        """The size of the line, and the line in pieces. Raises `RunError` where it is not there any more."""
        rows = self._select(LINE, number=number)
        if not rows:
            raise RunError(f"{self._files.path}: rollout {number} is no longer there: the file was changed.")
        ((part, _, offset, size, _, _),) = rows
        return size, self._pieces(self._files.file(part), offset, size)

    def _pieces(self, path: Path, offset: int, size: int) -> Iterator[bytes]:
        with self._files.opened(path) as file:
            while size > 0 and (piece := read_at(file, offset, min(size, RAW_PIECE))):
                yield piece
                offset, size = offset + len(piece), size - len(piece)

    def _line(self, number: int, limit: int | None = None) -> tuple[str, bytes, str | None]:
        """Where the line of a rollout is, the line, and why it is no rollout: then nothing is read without a limit."""
        rows = self._select(LINE, number=number)
        if not rows:
            raise RunError(f"{self._files.path}: rollout {number} is no longer there: the file was changed.")
        ((part, at, offset, whole, checksum, problem),) = rows
        path = self._files.file(part)
        where = f"{path}, line {at}"
        size = min(whole, limit if limit is not None else 0 if problem else whole)
        try:
            with self._files.opened(path) as file:
                line = read_at(file, offset, size)
        except FileNotFoundError:
            line = b""
        except OSError as error:
            raise RunError(f"{where}: {error.strerror}.") from None
        if len(line) < size or (size == whole and zlib.crc32(line) != checksum):
            raise RunError(f"{where}: the file was changed since it was listed.")
        return where, line, problem

    def search(self, text: str, within: Sequence[int] | None = None) -> Iterator[SearchFound]:
        """Rollouts in whose messages (reasoning and tool calls too), answer or error `text` occurs, in any case.

        Yields every few milliseconds of work. What is not indexed yet is not searched; `within`: only these numbers.
        Raises ValueError for an empty text, and while searching `RunError` where a file was changed.
        """
        query = Query(text)
        lines = LinePositions(*zip(*self._select(LINES), strict=True))
        numbers = range(len(lines.file)) if within is None else sorted(within)
        paths = {id: self._files.file(part) for id, part in self._select("SELECT id, part FROM files")}
        return search(query, numbers, lines, paths, self._files.opened)

    def search_some(self, query: Query, first: int, seconds: float) -> tuple[list[int], int]:
        """Rollouts from number `first` on in which the text occurs, and the number before which there are no more.

        Looks for about so many seconds, and holds a few lines at a time. Raises `RunError` where a file was changed.
        """
        deadline, matches = time.monotonic() + seconds, list[int]()
        paths = {id: self._files.file(part) for id, part in self._select("SELECT id, part FROM files")}
        while rows := self._select(f"{SOME_LINES} LIMIT {SEARCHED_AT_ONCE}", first=first):
            lines = LinePositions(*zip(*rows, strict=True))
            *_, last = search(query, range(len(rows)), lines, paths, self._files.opened)
            matches += [first + number for number in last.numbers]
            first += len(rows)
            if time.monotonic() >= deadline:
                break
        return matches, first

    def close(self) -> None:
        """Stop indexing; the index is kept."""
        with self._lock:
            if self.process is not None:
                self.process.terminate()
                self.process.communicate()
                self.process = None
            self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
