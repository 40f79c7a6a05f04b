"""Lines of a run's log, in pieces of a bounded size, from a cursor on or the last ones; also while it grows.

The log is logs/run.log after run.log.3 to run.log.1, which are older. A cursor is a position in one of these files,
named by its inode, so that it stays good when a new file is begun.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.records.files import find_newline, read_at
from whet.records.lock import is_locked
from whet.records.tail import Opener
from whet.system.untrusted import open_inside, open_named

LOG = "run.log"
KEPT_FILES = 3
"""Files before the current one: run.log.1 is the newest of them."""
POLL_SECONDS = 0.25
MOST_LINES = 2_000
MOST_BYTES = 1 << 20
"""Of the lines in one answer."""
MOST_READ = 32 << 20
"""Bytes looked through for one answer."""
LONGEST_LINE = 8 << 10
WHOLE = 1 << 40
"""Bytes or characters: as many as there are."""
PIECE = 256 << 10
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_HEAD = re.compile(rf"(\d{{4}}-\d\d-\d\dT[0-9:.]+(?:[+-]\d\d:?\d\d|Z)?) ({'|'.join(LEVELS)}) ")
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
    ended: bool = False  # whether a last line without its newline is a line
    longest: int = LONGEST_LINE  # characters of a line
    most: int = MOST_BYTES  # of the lines in the answer


class CursorError(RunError):
    """A cursor that no answer gave."""


@dataclass(slots=True)
class _File:
    descriptor: int
    inode: int
    size: int


def log_lines(
    directory: Path | None, query: LogQuery, output: Path | None = None, opened: Opener = open_inside
) -> dict[str, Any]:
    """Lines, the cursor `next` to continue with, and whether there are more now. Raises `CursorError`, and as `opened`.

    Args:
        output: what the run's process printed, which is read where there is no log.
    """
    with ExitStack() as stack:
        files = _files(directory, output, opened, stack)
        if not files:
            return {"lines": [], "next": "", "more": False}
        at, position = _start(files, query)
        page = _Page(query)
        while True:
            file = files[at]
            for text, end in _lines(file, position, growing=at == len(files) - 1 and not query.ended):
                page.take(text, end - position)
                position = end
                if page.full:
                    more = position < file.size or at + 1 < len(files)
                    return {"lines": list(page.lines), "next": _cursor(file, position), "more": more}
            if at + 1 == len(files):
                return {"lines": list(page.lines), "next": _cursor(file, position), "more": False}
            at, position = at + 1, 0


class _Page:
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
        most = len(self.lines) >= self._query.limit or self._kept >= self._query.most or self._read >= MOST_READ
        return most and not self._last_ones

    def take(self, text: str, size: int) -> None:
        self._read += size
        head = _HEAD.match(text)
        if head is not None:  # else it belongs to the line before
            self._level, self._when = head[2], head[1]
        if not _fits(text, self._level, self._when, self._query):
            return
        cut = len(text) - self._query.longest
        shown = text if cut <= 0 else f"{text[: self._query.longest]}… [{cut:,} characters more]"
        self.lines.append({"text": shown, "level": self._level, "at": self._when})
        self._kept += len(shown)
        while self._last_ones and (len(self.lines) > self._query.limit or self._kept > self._query.most):
            self._kept -= len(self.lines.popleft()["text"])


def _cursor(file: _File, position: int) -> str:
    return f"{file.inode:x}.{position}"


def _files(directory: Path | None, output: Path | None, opened: Opener, stack: ExitStack) -> list[_File]:
    """The files of the log that are there, the oldest first; what its process printed where there is no log."""
    names = [f"{LOG}.{number}" for number in range(KEPT_FILES, 0, -1)] + [LOG]
    by_inode: dict[int, _File] = {}  # a file that is renamed meanwhile is found twice
    for folder, name in [(directory, f"logs/{name}") for name in names] if directory is not None else []:
        _open(folder, name, opened, stack, by_inode)
    if not by_inode and output is not None:
        _open(output.parent, output.name, opened, stack, by_inode)
    return list(by_inode.values())


def _open(folder: Path, name: str, opened: Opener, stack: ExitStack, by_inode: dict[int, _File]) -> None:
    try:
        descriptor = stack.enter_context(opened(folder, name))
    except FileNotFoundError:
        return
    stat = os.fstat(descriptor)
    by_inode.setdefault(stat.st_ino, _File(descriptor, stat.st_ino, stat.st_size))


def _start(files: list[_File], query: LogQuery) -> tuple[int, int]:
    """Which file to begin in, and where. A cursor in a file that is gone begins with the oldest there is."""
    if query.cursor:
        match = _CURSOR.fullmatch(query.cursor)
        if match is None:
            raise CursorError("cursor: it is none of a log. Begin again without it.")
        inode, position = int(match[1], 16), int(match[2])
        for at, file in enumerate(files):
            if file.inode == inode and position <= file.size:
                return at, position
        return 0, 0
    if not query.tail:
        return 0, 0
    left = MOST_READ if query.search or query.level or query.since is not None else MOST_BYTES
    left = max(left, query.most)
    for at in range(len(files) - 1, -1, -1):
        file = files[at]
        if file.size >= left:
            newline = find_newline(file.descriptor, file.size - left, file.size)
            return at, file.size if newline is None else newline + 1
        left -= file.size
    return 0, 0


def _lines(file: _File, position: int, *, growing: bool) -> Iterator[tuple[str, int]]:
    """Lines from a position on, and where each ends; the last one may have no newline where the file has ended."""
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
    if begun and not growing:
        yield begun.decode("utf-8", "replace"), position


def _fits(text: str, level: str, when: str | None, query: LogQuery) -> bool:
    if query.search and query.search.casefold() not in text.casefold():
        return False
    if query.level and (level not in LEVELS or LEVELS.index(level) < LEVELS.index(query.level)):
        return False
    if query.since is None:
        return True
    return when is not None and _moment(when) >= query.since


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def read_log(
    run: Path, query: LogQuery, *, follow: bool = False, wait: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Every line that fits, or with `tail` the last ones; with `follow` also what is written, until no process holds
    the run. Raises `RunError` where the run has no log.
    """
    if not (run / "logs" / LOG).is_file():
        raise RunError(f"{run} has no log: {run / 'logs' / LOG} is missing.")
    query = replace(query, longest=WHOLE, most=WHOLE)
    while True:
        running = follow and is_locked(run)  # checked before reading: what is written just before the end is read
        page = log_lines(run, replace(query, ended=not running), opened=open_named)
        yield from (line["text"] for line in page["lines"])
        query = LogQuery(page["next"], MOST_LINES, search=query.search, level=query.level, since=query.since)
        query = replace(query, longest=WHOLE)
        if not page["more"]:
            if not running:
                return
            wait(POLL_SECONDS)
