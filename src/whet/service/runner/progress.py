"""How far a run has come and how it ended, read from its directory while its code may write into it.

Nothing that is read leads out of the directory or takes more than a bounded piece at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.records.directory import METADATA, METRICS, RESULTS, STATUS
from whet.records.tail import Tail, row_of
from whet.system import untrusted

PIECE = 4 << 20
DEEPEST = 3
"""Folders below `run/` in which the results of an evaluation are looked for."""
MOST_FOLDERS = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run's files say now."""

    step: int | None = None
    max_steps: int | None = None
    tokens: int | None = None
    state: str | None = None  # starting, running, finished, interrupted, failed
    error: str | None = None


def _within(folder: Path, *parts: str) -> tuple[Path, str]:
    """A path in `run/`, which its code may exchange for a link, as one below the folder above it."""
    return folder.parent, os.path.join(folder.name, *parts)


@dataclass(slots=True)
class Watch:
    """Follows the directory of one run, which is of one kind."""

    folder: Path  # DATA/runs/{run}/run
    kind: str
    before: Sequence[int] | None = None
    """What `mark` was when the attempt began: a file that is still that one says nothing of the attempt."""
    _tails: dict[tuple[str, ...], Tail] = field(default_factory=dict)
    _tokens: dict[tuple[str, ...], float] = field(default_factory=dict)
    _rows: dict[tuple[str, ...], int] = field(default_factory=dict)

    def look(self) -> Seen:
        if self.kind == "evaluation":
            return self._evaluation()
        status = untrusted.read_object(*_within(self.folder, STATUS))
        status = status or untrusted.read_object(*_within(self.folder, METADATA))
        stale = self.before is not None and self.mark() == list(self.before)
        self._count((METRICS,), _trained)
        self._count((RESULTS,), _used)
        return Seen(
            step=_whole(status.get("step", status.get("spent"))),  # of a search the calls
            max_steps=_whole(status.get("max_steps", status.get("max_calls"))),
            tokens=round(sum(self._tokens.values())),
            state=None if stale else _text(status.get("state")),
            error=None if stale else _text(status.get("last_error", status.get("reason"))),
        )

    def mark(self) -> list[int] | None:
        """Which version of the file with its state a run has; None without one."""
        for name in (STATUS, METADATA):
            with suppress(OSError), untrusted.open_inside(*_within(self.folder, name)) as descriptor:
                status = os.fstat(descriptor)
                return [status.st_ino, status.st_mtime_ns]
        return None

    def _evaluation(self) -> Seen:
        results = _results_in(self.folder)
        states = []
        for parts in results:
            self._count((*parts, RESULTS), _used)
            said = untrusted.read_object(*_within(self.folder, *parts, METADATA))
            states.append(_text(said.get("state")) or "finished")
        finished = bool(states) and all(state == "finished" for state in states)
        return Seen(
            step=sum(self._rows.values()),
            tokens=round(sum(self._tokens.values())),
            state="finished" if finished else "running" if states else None,
        )

    def _count(self, parts: tuple[str, ...], tokens_of: Any) -> None:
        directory, name = _within(self.folder, *parts)
        try:
            again, lines, _ = self._tails.setdefault(parts, Tail(name, PIECE)).read(directory)
        except OSError:
            return
        rows = [row for line, _ in lines if (row := row_of(line))]
        if again:
            self._tokens[parts], self._rows[parts] = 0.0, 0
        self._tokens[parts] = self._tokens.get(parts, 0.0) + sum(map(tokens_of, rows))
        self._rows[parts] = self._rows.get(parts, 0) + len(rows)


def _trained(row: Mapping[str, Any]) -> float:
    """Trained tokens of a step, as its speed and its time say."""
    return _number(row.get("perf/tokens_per_s")) * _number(row.get("time/step"))


def _used(row: Mapping[str, Any]) -> float:
    """Tokens that a rollout read and wrote."""
    usage = row.get("token_usage")
    return sum(_number(value) for value in usage.values()) if isinstance(usage, Mapping) else 0.0


def _results_in(folder: Path) -> list[tuple[str, ...]]:
    """Folders below that hold results, by their parts; links are not followed."""
    walk = untrusted.folders(*_within(folder), deepest=DEEPEST, most=MOST_FOLDERS)
    return [Path(path).parts for path, names in walk if RESULTS in names or METADATA in names]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0.0


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _text(value: Any) -> str | None:
    return value[:2000] if isinstance(value, str) and value else None
