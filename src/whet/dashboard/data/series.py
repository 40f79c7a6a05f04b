"""Curves of a run: the rows of metrics.jsonl as columns, read as they are appended and thinned for a page."""

from __future__ import annotations

import math
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from whet.dashboard.data.files import directory_of, open_inside
from whet.dashboard.library import LibraryRun
from whet.records.directory import METRICS
from whet.records.tail import Tail, row_of

LONGEST_LINE = 4 << 20
"""Bytes of the file that are read at a time; no row is longer."""
ROWS = 100
"""Rows that are added at a time."""
BLOCK = 32
"""Rows whose extremes are kept: the curves of all metrics of a long run are thinned for each look at its page."""
MOST_NAMES = 2_000
"""Metrics of one run; what has more is not a run's record."""
MOST_BYTES = 64 << 20
"""Of the columns that are kept, of all runs together; at least one run is."""
MOST_POINTS = 1_000
MOST_VALUES = 200_000
"""Values in one answer: of very many metrics, each has fewer points."""
NAN = math.nan


@dataclass(slots=True)
class MetricColumns:
    """The numbers of one run so far. A value that is not there, or not finite, is NaN."""

    file: Tail = field(default_factory=lambda: Tail(METRICS, LONGEST_LINE))
    damaged: int = 0  # lines that are no rows
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: dict[str, array[float]] = field(default_factory=dict)
    extremes: dict[str, array[int]] = field(default_factory=dict)
    """Of each whole block of a column: where its least and its most value are; -1 twice where it has none."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the columns change or are used; never while the file is read."""
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one thread that reads the file, which may take long."""

    @property
    def memory(self) -> int:
        return 8 * len(self.steps) * (1 + len(self.values))

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; one of an earlier step replaces what was from there on."""
        step = row.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**53:
            self.damaged += 1
            return
        if self.steps and step <= self.steps[-1]:
            kept = bisect_left(self.steps, step)
            del self.steps[kept:]
            for column in self.values.values():
                del column[kept:]
            for positions in self.extremes.values():
                del positions[kept // BLOCK * 2 :]
        count, given = len(self.steps), 0
        self.steps.append(step)
        for name, value in row.items():
            if type(value) is not float and (isinstance(value, bool) or not isinstance(value, int)):
                continue
            known = self.values.get(name)
            if known is None:
                if name == "step" or len(self.values) >= MOST_NAMES:
                    continue
                known = self.values[name] = array("d", [NAN]) * count
            known.append(_finite(value))
            given += 1
        for column in self.values.values() if given < len(self.values) else ():
            if len(column) == count:
                column.append(NAN)

    def blocks(self, name: str) -> array[int]:
        """The extremes of a column's whole blocks, two positions for each."""
        column, positions = self.values[name], self.extremes.setdefault(name, array("q"))
        for start in range(len(positions) // 2 * BLOCK, len(column) - BLOCK + 1, BLOCK):
            block = column[start : start + BLOCK]
            if (total := sum(block)) == total:  # all are numbers
                positions.extend((start + block.index(min(block)), start + block.index(max(block))))
            else:
                positions.extend(_extremes(column, range(start, start + BLOCK)) or (-1, -1))
        return positions


def _finite(value: float) -> float:
    try:
        return value if math.isfinite(value) else NAN
    except OverflowError:
        return NAN


def _extremes(column: Sequence[float], positions: Iterable[int]) -> tuple[int, int] | None:
    """Where the least and the most of the values at these positions are; None where there is none."""
    there = [(column[at], at) for at in positions if at >= 0 and column[at] == column[at]]
    return (min(there)[1], max(there)[1]) if there else None


class SeriesColumns:
    """The columns of the runs that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, MetricColumns] = OrderedDict()

    def of(self, run: LibraryRun, patience: float | None = None) -> MetricColumns:
        """All rows that are whole now, or as many as are read in `patience` seconds, none anew for 0; empty where there
        is no file. Do not keep it: it grows. Hold its `lock`.
        """
        until = math.inf if patience is None else time.monotonic() + patience
        with self._lock:
            known = self._runs.setdefault(run.id, MetricColumns())
            self._runs.move_to_end(run.id)
            while len(self._runs) > 1 and sum(one.memory for one in self._runs.values()) > MOST_BYTES:
                self._runs.popitem(last=False)
        if patience != 0 and known.reading.acquire(timeout=-1 if patience is None else patience):
            try:
                self._read(run, known, until)
            finally:
                known.reading.release()
        return known

    def _read(self, run: LibraryRun, known: MetricColumns, until: float) -> None:
        while True:
            again, lines, passed_over = known.file.read(directory_of(run), open_inside)
            if again:
                _clear(known)
            known.damaged += passed_over
            for rows in _pieces([line for line, _ in lines]):
                with known.lock:
                    for row in rows:
                        known.add(row)
            if not known.file.more or time.monotonic() > until:
                return


def _pieces(lines: Sequence[bytes]) -> Iterator[list[Any]]:
    """The rows of some lines, a few at a time: parsed without a lock, and added in the time of a short one."""
    for start in range(0, len(lines), ROWS):
        yield [row_of(line) for line in lines[start : start + ROWS] if line.strip()]


def _clear(known: MetricColumns) -> None:
    with known.lock:
        known.damaged = 0
        known.steps = array("q")
        known.values, known.extremes = {}, {}


def chosen_names(known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The metrics that are named; `reward/` names all that begin so, nothing names all. Unknown names are left out."""
    if not wanted:
        return sorted(known)
    exact = {name for name in wanted if name in known}
    prefixes = tuple(name for name in wanted if name.endswith("/"))
    return sorted(exact | {one for one in known if one.startswith(prefixes)})


def metrics(
    series: SeriesColumns,
    run: LibraryRun,
    wanted: Sequence[str] = (),
    points: int = 500,
    after: int | None = None,
    patience: float | None = None,
) -> dict[str, Any]:
    """Curves over the same steps. Of more steps than `points`, each bucket of steps has two points: its least and its
    most value, in their order, at the bucket's first and last step. The first and the newest step are exact. `read` is
    the share of the file that is known: 1, or less after `patience` seconds.
    """
    columns = series.of(run, patience)
    with columns.lock:
        names = chosen_names(list(columns.values), wanted)
        most = max(4, min(points, MOST_POINTS, MOST_VALUES // max(1, len(names))))
        first = 0 if after is None else bisect_right(columns.steps, after)
        count = len(columns.steps) - first
        if count <= most:
            steps = list(columns.steps[first:])
            values = {name: _plain(columns.values[name][first:]) for name in names}
        else:
            ends = _buckets(first + 1, len(columns.steps) - 1, (most - 2) // 2)
            positions = [at for start, stop in ends for at in dict.fromkeys((start, stop - 1))]
            steps = [columns.steps[at] for at in (first, *positions, -1)]
            values = {name: _thinned(columns.values[name], columns.blocks(name), ends) for name in names}
        return {
            "generation": columns.file.generation,
            "steps": steps,
            "series": values,
            "last_step": columns.steps[-1] if columns.steps else None,
            "names": sorted(columns.values),
            "thinned": count > most,
            "damaged": columns.damaged,
            "read": columns.file.position / columns.file.size if columns.file.more else 1.0,
        }


def _plain(values: Sequence[float]) -> list[float | None]:
    return [None if value != value else value for value in values]


def _buckets(first: int, stop: int, count: int) -> list[tuple[int, int]]:
    """`count` ranges of positions, of about equal length, that cover [first, stop); long ones are whole blocks."""
    count = max(1, min(count, stop - first))
    unit = BLOCK if stop - first > BLOCK * count else 1
    inner = [(first + (stop - first) * index // count) // unit * unit for index in range(1, count)]
    return list(pairwise([first, *inner, stop]))


def _thinned(values: Sequence[float], blocks: Sequence[int], ends: Sequence[tuple[int, int]]) -> list[float | None]:
    thinned: list[float | None] = _plain([values[ends[0][0] - 1]])
    for start, stop in ends:
        whole = start % BLOCK == stop % BLOCK == 0 and stop - start >= BLOCK
        positions = blocks[start // BLOCK * 2 : stop // BLOCK * 2] if whole else range(start, stop)
        extremes = _extremes(values, positions)
        if extremes is None:
            thinned += [None] * min(2, stop - start)
        else:
            thinned += [values[at] for at in sorted(extremes)][: stop - start]
    return [*thinned, *_plain([values[-1]])]
