"""Curves of a run: the rows of metrics.jsonl as columns, read as they are appended and thinned for a page."""

from __future__ import annotations

import math
import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from whet.dashboard.data.files import directory_of, open_inside
from whet.dashboard.library import LibraryRun
from whet.system.files import parse_json
from whet.viewer.files import read_at

METRICS = "metrics.jsonl"
PIECE = 4 << 20
LONGEST_LINE = 4 << 20
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

    generation: str = ""
    inode: int = 0
    position: int = 0  # bytes read
    damaged: int = 0  # lines that are no rows
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: dict[str, array[float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def memory(self) -> int:
        return 8 * len(self.steps) * (1 + len(self.values))

    def add(self, line: bytes) -> None:
        """Append the row of a line; a row of an earlier step replaces what was from there on."""
        try:
            row = parse_json(line)
            step = row["step"]
        except (ValueError, KeyError, TypeError):
            self.damaged += 1
            return
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**53:
            self.damaged += 1
            return
        if self.steps and step <= self.steps[-1]:
            kept = bisect_left(self.steps, step)
            del self.steps[kept:]
            for column in self.values.values():
                del column[kept:]
        count = len(self.steps)
        self.steps.append(step)
        for name, value in row.items():
            if name == "step" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if name not in self.values and len(self.values) < MOST_NAMES:
                self.values[name] = array("d", [NAN]) * count
            if name in self.values:
                self.values[name].append(_finite(value))
        for column in self.values.values():
            if len(column) == count:
                column.append(NAN)


def _finite(value: float) -> float:
    try:
        return float(value) if math.isfinite(value) else NAN
    except OverflowError:
        return NAN


class MetricSeries:
    """The columns of the runs that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, MetricColumns] = OrderedDict()

    def of(self, run: LibraryRun) -> MetricColumns:
        """All rows that are whole now; empty where there is no file. Do not keep it: it grows. Hold its `lock`."""
        with self._lock:
            known = self._runs.setdefault(run.id, MetricColumns())
            self._runs.move_to_end(run.id)
            while len(self._runs) > 1 and sum(one.memory for one in self._runs.values()) > MOST_BYTES:
                self._runs.popitem(last=False)
        with known.lock:
            self._read(run, known)
        return known

    def _read(self, run: LibraryRun, known: MetricColumns) -> None:
        try:
            with open_inside(directory_of(run), METRICS) as file:
                found = os.fstat(file)
                if found.st_ino != known.inode or found.st_size < known.position:
                    _clear(known, found.st_ino)
                while known.position < found.st_size:
                    data = read_at(file, known.position, min(PIECE, found.st_size - known.position))
                    whole = data.rfind(b"\n") + 1
                    if whole == 0:
                        if len(data) > LONGEST_LINE - 1:  # no row is this long
                            known.position += len(data)
                            known.damaged += 1
                            continue
                        return  # torn; its end is still to come
                    for line in data[:whole].splitlines():
                        if line.strip():
                            known.add(line)
                    known.position += whole
        except FileNotFoundError:
            _clear(known, 0)


def _clear(known: MetricColumns, inode: int) -> None:
    known.inode, known.position, known.damaged = inode, 0, 0
    known.generation = f"{inode:x}"
    known.steps = array("q")
    known.values = {}


def chosen_names(known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The metrics that are named; `reward/` names all that begin so, nothing names all. Unknown names are left out."""
    if not wanted:
        return sorted(known)
    exact = {name for name in wanted if name in known}
    prefixes = tuple(name for name in wanted if name.endswith("/"))
    return sorted(exact | {one for one in known if one.startswith(prefixes)})


def metrics(
    series: MetricSeries, run: LibraryRun, wanted: Sequence[str] = (), points: int = 500, after: int | None = None
) -> dict[str, Any]:
    """Curves over the same steps. Of more steps than `points`, each bucket of steps has two points: its least and its
    most value, in their order, at the bucket's first and last step. The newest step is always exact.
    """
    columns = series.of(run)
    with columns.lock:
        names = chosen_names(list(columns.values), wanted)
        most = max(2, min(points, MOST_POINTS, MOST_VALUES // max(1, len(names))))
        first = 0 if after is None else bisect_right(columns.steps, after)
        count = len(columns.steps) - first
        if count <= most:
            steps = list(columns.steps[first:])
            values = {name: _plain(columns.values[name][first:]) for name in names}
        else:
            ends = _buckets(first, len(columns.steps) - 1, (most - 1) // 2)
            places = [at for start, stop in ends for at in dict.fromkeys((start, stop - 1))]
            steps = [columns.steps[at] for at in (*places, -1)]
            values = {name: _thinned(columns.values[name], ends) for name in names}
        return {
            "generation": columns.generation,
            "steps": steps,
            "series": values,
            "last_step": columns.steps[-1] if columns.steps else None,
            "names": sorted(columns.values),
            "thinned": count > most,
            "damaged": columns.damaged,
        }


def _plain(values: Sequence[float]) -> list[float | None]:
    return [None if value != value else value for value in values]


def _buckets(first: int, stop: int, count: int) -> list[tuple[int, int]]:
    """`count` ranges of positions, of about equal length, that cover [first, stop)."""
    count = max(1, min(count, stop - first))
    ends = [first + (stop - first) * index // count for index in range(count + 1)]
    return list(pairwise(ends))


def _thinned(values: Sequence[float], ends: Sequence[tuple[int, int]]) -> list[float | None]:
    found: list[float | None] = []
    for start, stop in ends:
        there = [(values[at], at) for at in range(start, stop) if values[at] == values[at]]
        if stop - start == 1:
            found.append(there[0][0] if there else None)
        elif not there:
            found += [None, None]
        else:
            least, most = min(there), max(there)
            pair = (least, most) if least[1] <= most[1] else (most, least)
            found += [pair[0][0], pair[1][0]]
    return [*found, *_plain([values[-1]])]
