"""Lines of a run's log, in pieces of a bounded size: from a cursor on, or the last ones.

The log is logs/run.log after run.log.3 to run.log.1, which are older. A cursor is a position in one of these files,
named by its inode, so that it stays good when a new file is begun.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from whet.dashboard.data.cutting import Cutter
from whet.dashboard.data.files import directory_of, open_inside
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun
from whet.records.files import find_newline, read_at
from whet.records.following import KEPT_FILES, LOG

MOST_LINES = 2_000
MOST_BYTES = 1 << 20
"""Of the lines in one answer."""
MOST_READ = 32 << 20
"""Bytes looked through for one answer."""
LONGEST_LINE = 8 << 10
PIECE = 256 << 10
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_HEAD = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}) (DEBUG|INFO|WARNING|ERROR|CRITICAL) ")
_CURSOR = re.compile(r"([0-9a-f]{1,16})\.(\d{1,15})")


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines: those after `cursor`, or with `tail` the last ones; and only those that fit the others."""

    cursor: str = ""
    limit: int = 500
    tail: bool = False
    search: str = ""
    level: str = ""  # from this level up
    since: float | None = None


@dataclass(slots=True)
class _File:
    descriptor: int
    inode: int
    size: int


def log_lines(run: LibraryRun, query: LogQuery) -> dict[str, Any]:
    """Lines, the cursor `next` to continue with, and whether there are more now."""
    with ExitStack() as stack:
        files = _files(run, stack)
        if not files:
            return {"lines": [], "next": "", "more": False}
        at, position = _start(files, query)
        found = _Found(query)
        while True:
            file = files[at]
            for text, end in _lines(file, position, last=at == len(files) - 1):
                found.take(text, end - position)
                position = end
                if found.full:
                    more = position < file.size or at + 1 < len(files)
                    return {"lines": list(found.lines), "next": _cursor(file, position), "more": more}
            if at + 1 == len(files):
                return {"lines": list(found.lines), "next": _cursor(file, position), "more": False}
            at, position = at + 1, 0


class _Found:
    """The lines of an answer: the first that fit, or with `tail` the last."""

    def __init__(self, query: LogQuery) -> None:
        self.lines: deque[dict[str, Any]] = deque()
        self._query = query
        self._last_ones = query.tail and not query.cursor
        self._kept = self._read = 0
        self._level = ""
        self._when: str | None = None

    @property
    def full(self) -> bool:
        most = len(self.lines) >= self._query.limit or self._kept >= MOST_BYTES or self._read >= MOST_READ
        return most and not self._last_ones

    def take(self, text: str, size: int) -> None:
        self._read += size
        head = _HEAD.match(text)
        if head is not None:
            self._level, self._when = head[2], head[1]
        elif not text.startswith("    "):  # else it belongs to the line before
            self._level, self._when = "", None
        if not _fits(text, self._level, self._when, self._query):
            return
        shown = Cutter(longest=LONGEST_LINE).text(text)
        self.lines.append({"text": shown, "level": self._level, "at": self._when})
        self._kept += len(shown)
        while self._last_ones and (len(self.lines) > self._query.limit or self._kept > MOST_BYTES):
            self._kept -= len(self.lines.popleft()["text"])


def _cursor(file: _File, position: int) -> str:
    return f"{file.inode:x}.{position}"


def _files(run: LibraryRun, stack: ExitStack) -> list[_File]:
    """The files of the log that are there, the oldest first; what its process printed where there is no log."""
    directory = directory_of(run) if run.directory is not None else None
    names = [f"{LOG}.{number}" for number in range(KEPT_FILES, 0, -1)] + [LOG]
    places = [(directory, f"logs/{name}") for name in names if directory is not None]
    files = [file for folder, name in places if (file := _open(folder, name, stack)) is not None]
    if not files and run.output_file is not None:
        output = _open(run.output_file.parent, run.output_file.name, stack)
        files = [] if output is None else [output]
    seen: set[int] = set()  # a file that is renamed meanwhile is found twice
    return [file for file in files if not (file.inode in seen or seen.add(file.inode))]  # type: ignore[func-returns-value]


def _open(folder: Path, name: str, stack: ExitStack) -> _File | None:
    try:
        descriptor = stack.enter_context(open_inside(folder, name))
    except FileNotFoundError:
        return None
    found = os.fstat(descriptor)
    return _File(descriptor, found.st_ino, found.st_size)


def _start(files: list[_File], query: LogQuery) -> tuple[int, int]:
    """Which file to begin in, and where. A cursor in a file that is gone begins with the oldest there is."""
    if query.cursor:
        found = _CURSOR.fullmatch(query.cursor)
        if found is None:
            raise DashboardError("invalid", "cursor: it is none of a log. Begin again without it.")
        inode, position = int(found[1], 16), int(found[2])
        for at, file in enumerate(files):
            if file.inode == inode and position <= file.size:
                return at, position
        return 0, 0
    if not query.tail:
        return 0, 0
    left = MOST_READ if query.search or query.level or query.since is not None else MOST_BYTES
    for at in range(len(files) - 1, -1, -1):
        file = files[at]
        if file.size >= left:
            newline = find_newline(file.descriptor, file.size - left, file.size)
            return at, file.size if newline is None else newline + 1
        left -= file.size
    return 0, 0


def _lines(file: _File, position: int, *, last: bool) -> Iterator[tuple[str, int]]:
    """Whole lines from a position on, and where each ends; an unfinished one ends any file but the last."""
    begun = b""
    begun_at = position
    while True:
        data = read_at(file.descriptor, position, min(PIECE, file.size - position))
        if not data:
            break
        position += len(data)
        *whole, begun = (begun + data).split(b"\n")
        for line in whole:
            begun_at += len(line) + 1
            yield line.decode("utf-8", "replace").rstrip("\r"), begun_at
        if len(begun) > MOST_BYTES:  # a line that never ends is given in pieces
            begun_at += len(begun)
            yield begun.decode("utf-8", "replace"), begun_at
            begun = b""
    if begun and not last:
        yield begun.decode("utf-8", "replace"), position


def _fits(text: str, level: str, when: str | None, query: LogQuery) -> bool:
    if query.search and query.search.casefold() not in text.casefold():
        return False
    if query.level and (level not in LEVELS or LEVELS.index(level) < LEVELS.index(query.level)):
        return False
    if query.since is None:
        return True
    return when is not None and datetime.strptime(when, "%Y-%m-%dT%H:%M:%S%z").timestamp() >= query.since
