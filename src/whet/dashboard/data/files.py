"""Reading files of a run's directory, whose content and names a hostile program may have made.

A file is opened one component at a time below its directory, and no link is followed: what it names is elsewhere, and
may belong to others. Each read is bounded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from whet.dashboard.errors import DashboardError
from whet.viewer.files import read_at

_NO_LINK = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
LAST_LINE_BYTES = 1 << 18


class FileStamp(NamedTuple):
    """What changes when a file is written or replaced."""

    inode: int
    size: int
    modified: int  # nanoseconds


def file_stamp(path: Path) -> FileStamp | None:
    """Of a regular file or a directory; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return None if stat.S_ISLNK(found.st_mode) else FileStamp(found.st_ino, found.st_size, found.st_mtime_ns)


@contextmanager
def open_inside(directory: Path, name: str) -> Iterator[int]:
    """A descriptor of the regular file `name`, a path below `directory`, for reading.

    Raises `DashboardError` where a link or another thing than a file is at that path, `FileNotFoundError` where nothing
    is.
    """
    opened: list[int] = []
    try:
        *folders, last = Path(name).parts
        if last == ".." or ".." in folders or os.path.isabs(name):
            raise _refused(directory, name)
        opened.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in folders:
            opened.append(os.open(part, _NO_LINK | os.O_DIRECTORY, dir_fd=opened[-1]))
        opened.append(os.open(last, _NO_LINK, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            raise _refused(directory, name)
        yield opened[-1]
    except FileNotFoundError:
        raise
    except OSError as error:
        if (directory / name).is_symlink() or any((directory / part).is_symlink() for part in Path(name).parents):
            raise _refused(directory, name) from None
        raise DashboardError("unreadable", f"{directory / name}: {error.strerror or error}.") from None
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


def _refused(directory: Path, name: str) -> DashboardError:
    return DashboardError(
        "forbidden", f"{directory / name}: not a regular file of this directory; links are not followed."
    )


def read_text(directory: Path, name: str, limit: int) -> str:
    """The whole text of a file. Raises as `open_inside`, and `DashboardError` above `limit` bytes."""
    with open_inside(directory, name) as file:
        data = read_at(file, 0, limit + 1)
    if len(data) > limit:
        raise DashboardError("too_large", f"{directory / name}: larger than {limit:,} bytes, so it is not read.")
    return data.decode("utf-8", "replace")


def last_line(directory: Path, name: str) -> str:
    """The last whole line of a file, "" where there is none within its last 256 KiB."""
    with open_inside(directory, name) as file:
        size = os.fstat(file).st_size
        start = max(0, size - LAST_LINE_BYTES)
        data = read_at(file, start, size - start)
    lines = data.split(b"\n")[:-1]
    whole = lines if start == 0 else lines[1:]
    return whole[-1].decode("utf-8", "replace") if whole else ""
