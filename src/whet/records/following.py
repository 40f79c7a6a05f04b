"""The log of a run, also while it grows: `whet train logs -f`."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from whet.errors import RunError
from whet.records.lock import is_locked

LOG = "run.log"
KEPT_FILES = 3
"""Files before the current one: run.log.1 is the newest of them."""
POLL_SECONDS = 0.25


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_HEAD = re.compile(rf"(?P<at>\d{{4}}-\d\d-\d\dT[0-9:.]+(?:[+-]\d\d:?\d\d|Z)?) (?P<level>{'|'.join(LEVELS)}) ")


class LineFilter:
    """Which lines of a log are wanted. A line without time and level belongs to the one before it."""

    def __init__(self, search: str | None = None, level: str | None = None, since: float | None = None) -> None:
        """Lines with `search` in them, in any case; of `level` or worse; and not before `since`, seconds since 1970."""
        self._search = search.casefold() if search else ""
        self._level = LEVELS.index(level.upper()) if level else 0
        self._since = since
        self._accepted = True  # of the line before

    def __call__(self, line: str) -> bool:
        found = _HEAD.match(line)
        if found is not None:
            worse = LEVELS.index(found["level"]) >= self._level
            self._accepted = worse and (self._since is None or _moment(found["at"]) >= self._since)
        return self._accepted and self._search in line.casefold()


def read_log(
    run: Path,
    *,
    follow: bool = False,
    accepts: Callable[[str], bool] = lambda line: True,
    tail: int | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Every line that is kept, the oldest first; with `follow` also what is written, until no process holds the run.

    Only lines that `accepts` is true of, and of those that are there already only the last `tail`. A log that begins a
    new file is followed into it. Raises `RunError` where the run has no log.
    """
    path = run / "logs" / LOG
    if not path.is_file():
        raise RunError(f"{run} has no log: {path} is missing.")
    held: deque[str] | None = None if tail is None else deque(maxlen=tail)
    for line in _lines(run, path, follow, wait):
        if line is None:
            yield from held or ()
            held = None
        elif accepts(line):
            if held is None:
                yield line
            else:
                held.append(line)


def _lines(run: Path, path: Path, follow: bool, wait: Callable[[float], None]) -> Iterator[str | None]:
    """Every line, and None each time that all lines which are there were read."""
    for number in range(KEPT_FILES, 0, -1):
        if (older := path.with_name(f"{LOG}.{number}")).is_file():
            yield from older.read_text(encoding="utf-8", errors="replace").splitlines()
    file = path.open(encoding="utf-8", errors="replace")
    begun = ""
    try:
        while True:
            running = follow and is_locked(run)  # checked before reading: what is written just before the end is read
            text = file.read()
            *lines, begun = (begun + text).split("\n")
            yield from lines
            if text:
                continue
            if _inode(path) not in (None, os.fstat(file.fileno()).st_ino):
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
            elif running:
                yield None
                wait(POLL_SECONDS)
            else:
                yield from filter(None, [begun])
                yield None
                return
    finally:
        file.close()


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:  # between two files
        return None
