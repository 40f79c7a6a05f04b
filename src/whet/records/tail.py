"""A file of lines that another process appends to, cuts or replaces: what is new in it, and how it ends."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from whet.parsing import parse_json
from whet.records.files import read_at
from whet.system.untrusted import open_inside

LAST_LINE_BYTES = 1 << 18
Opener = Callable[[Path, str], AbstractContextManager[int]]
"""Opens the file of a name below a directory for reading, as `open_inside` does."""


class FileStamp(NamedTuple):
    """What changes when a file is written or replaced."""

    inode: int
    size: int
    modified: int  # nanoseconds


def file_stamp(path: Path) -> FileStamp | None:
    """Of a regular file or a directory; None where there is none."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return None
    return None if stat.S_ISLNK(status.st_mode) else FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)


class Appended(NamedTuple):
    """What one reading of a `Tail` found."""

    again: bool  # the file became another one, shorter, or is gone: this is from its beginning
    lines: list[tuple[bytes, int]]  # each without its newline, and where it ends in the file
    passed_over: bool = False  # a piece of a line that is longer than one reading


@dataclass(slots=True)
class Tail:
    """New whole lines of a file, each time it is read. A torn last line waits for its end."""

    name: str  # path below the directory
    most: int = 1 << 20  # bytes of one reading
    inode: int = 0
    position: int = 0  # what is before was read
    size: int = 0  # when the file was last opened
    more: bool = False  # the last reading did not come to the end

    @property
    def generation(self) -> str:
        """Names the file that is there now; "" for none."""
        return f"{self.inode:x}" if self.inode else ""

    def read(self, directory: Path, opened: Opener = open_inside) -> Appended:
        """Raises as `opened` does, but not where there is no file."""
        try:
            with opened(directory, self.name) as file:
                again = self._open(os.fstat(file))
                data = read_at(file, self.position, min(self.most, self.size - self.position))
        except FileNotFoundError:
            again, self.inode, self.position, self.size, self.more = self.inode != 0, 0, 0, 0, False
            return Appended(again, [])
        self.more = len(data) == self.most
        *whole, rest = data.split(b"\n")
        passed_over = self.more and not whole
        lines = []
        for line in whole:
            self.position += len(line) + 1
            lines.append((line, self.position))
        self.position += len(rest) if passed_over else 0
        return Appended(again, lines, passed_over)

    def skip(self, directory: Path) -> None:
        """Take what is there as read."""
        try:
            with open_inside(directory, self.name) as file:
                self._open(os.fstat(file))
                start = max(0, self.size - self.most)
                self.position = start + read_at(file, start, self.size - start).rfind(b"\n") + 1
        except FileNotFoundError:
            self.inode = self.position = self.size = 0

    def _open(self, status: os.stat_result) -> bool:
        """Take note of the file that is there now; whether it is not the one that was read, as it was."""
        again = self.inode != 0 and (status.st_ino != self.inode or status.st_size < self.position)
        if again:
            self.position = 0
        self.inode, self.size = status.st_ino, status.st_size
        return again


def row_of(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; empty for any other line."""
    try:
        row = parse_json(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def last_row(directory: Path, name: str) -> dict[str, Any]:
    """The JSON object in the last whole line of a file, within its last 256 KiB; empty where there is none."""
    try:
        with open_inside(directory, name) as file:
            size = os.fstat(file).st_size
            start = max(0, size - LAST_LINE_BYTES)
            *lines, _ = read_at(file, start, size - start).split(b"\n")
    except OSError:
        return {}
    return row_of(lines[-1]) if len(lines) > (start > 0) else {}
