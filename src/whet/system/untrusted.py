"""Folders that hostile code writes into: read, listed, given away and removed without following a link.

Each part of a path below the folder is opened by name within the part before it (`O_NOFOLLOW`, as
`openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)` would), so that exchanging a folder for a link while it is read leads
nowhere. Only regular files are opened, no open waits for another process, and sizes and depths are bounded.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from whet.parsing import parse_json

SMALL_BYTES = 1 << 20
DEEPEST = 100
"""Levels of folders of which the owner is changed, and that count as ordinary files do."""
MOST_NAMES = 100_000
NOT_INSIDE = errno.ELOOP
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
_roots: list[Path] = []


def distrust(root: Path) -> None:
    """From now on each path below `root` is opened from there, whichever of its folders a caller names."""
    if root not in _roots:
        _roots.append(root)


@contextmanager
def open_folder(directory: Path, name: str = ".") -> Iterator[int]:
    """A descriptor of the folder `name`, a path below `directory`. Raises as `open_inside`."""
    root, parts = _anchored(directory, name)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = _opened(part, _FOLDER, descriptor, directory / name)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_inside(directory: Path, name: str) -> Iterator[int]:
    """A descriptor of the regular file `name`, a path below `directory`, for reading; no link in it is followed.

    What a hostile program left there can then not name a file elsewhere. Raises `OSError` as `os.open` does, with
    `NOT_INSIDE` in `errno` for a link, for another thing than a file, and for a path that leads out.
    """
    above, last = os.path.split(name)
    with open_folder(directory, above or ".") as folder:
        if last in ("", ".", ".."):
            raise OSError(NOT_INSIDE, os.strerror(NOT_INSIDE), str(directory / name))
        descriptor = _opened(last, _READ, folder, directory / name)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(NOT_INSIDE, os.strerror(NOT_INSIDE), str(directory / name))
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_named(directory: Path, name: str) -> Iterator[int]:
    """As `open_inside`, but of a folder that is not distrusted; links are followed."""
    with open_path(directory / name) as file:
        yield file.fileno()


def open_path(path: Path) -> BinaryIO:
    """A file for reading: below a folder that is distrusted as `open_inside` opens it, else as `Path.open` does."""
    if _root_above(path) is None:
        return path.open("rb")
    with open_inside(path.parent, path.name) as descriptor:
        return os.fdopen(os.dup(descriptor), "rb")


def _root_above(path: Path) -> Path | None:
    return next((root for root in _roots if path.is_relative_to(root)), None)


def _anchored(directory: Path, name: str) -> tuple[Path, tuple[str, ...]]:
    """Where a path is opened from, and the parts below that."""
    parts = Path(name).parts
    if os.path.isabs(name) or ".." in parts or "\0" in name:
        raise OSError(NOT_INSIDE, os.strerror(NOT_INSIDE), str(directory / name))
    root = _root_above(directory) or directory
    return root, (*directory.relative_to(root).parts, *parts)


def _opened(part: str, flags: int, within: int, whole: Path) -> int:
    try:
        return os.open(part, flags, dir_fd=within)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(whole)) from None
    except OSError as error:
        number = error.errno
        with suppress(OSError):
            link = stat.S_ISLNK(os.stat(part, dir_fd=within, follow_symlinks=False).st_mode)
            number = NOT_INSIDE if link else number
        raise OSError(number, os.strerror(number or 0), str(whole)) from None


def is_file(directory: Path, name: str) -> bool:
    """Whether a regular file is at that path."""
    with suppress(OSError, ValueError), open_inside(directory, name):
        return True
    return False


def is_folder(directory: Path, name: str) -> bool:
    """Whether a folder is at that path, and no link to one."""
    with suppress(OSError, ValueError), open_folder(directory, name):
        return True
    return False


def exists(directory: Path, name: str) -> bool:
    """Whether a regular file or a folder is at that path."""
    return is_folder(directory, name) or is_file(directory, name)


def read_object(directory: Path, name: str, most: int = SMALL_BYTES) -> dict[str, Any]:
    """The JSON object in a file of at most `most` bytes; empty where there is none."""
    try:
        with open_inside(directory, name) as descriptor:
            if os.fstat(descriptor).st_size > most:
                return {}
            value = parse_json(os.pread(descriptor, most, 0))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def names(directory: Path, name: str, most: int = MOST_NAMES) -> list[str]:
    """The first `most` names of a folder; none where there is no folder."""
    try:
        with open_folder(directory, name) as descriptor, os.scandir(descriptor) as entries:
            return [entry.name for entry, _ in zip(entries, range(most), strict=False)]
    except (OSError, ValueError):
        return []


def folders(directory: Path, name: str, *, deepest: int, most: int) -> Iterator[tuple[str, list[str]]]:
    """A folder and the first `most` below it, to a depth: the path of each within that folder, and its names."""
    waiting = [""]
    for _ in range(most):
        if not waiting:
            return
        here = waiting.pop(0)
        names = []
        try:
            with open_folder(directory, os.path.join(name, here)) as descriptor, os.scandir(descriptor) as entries:
                for entry, _ in zip(entries, range(MOST_NAMES), strict=False):
                    names.append(entry.name)
                    if len(Path(here).parts) < deepest and entry.is_dir(follow_symlinks=False):
                        waiting.append(os.path.join(here, entry.name))
        except OSError:
            continue
        yield here, names


def measure(directory: Path, most: int) -> tuple[int, int]:
    """Bytes and files below a folder, as far as `most` files. Folders that are too deep count as too many files."""
    size = count = 0
    with open_folder(directory) as top:
        for path, inner, files, folder in os.fwalk(".", dir_fd=top):
            for name in (*inner, *files):
                with suppress(OSError):
                    size += os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512
                    count += 1
            if path.count("/") >= DEEPEST and inner:
                count = most + 1
            if count > most:
                break
    return size, count


def give(directory: Path, name: str, user: int) -> None:
    """Make a user the owner of a folder and of all that is in it, unless it is already. Without the folder: nothing.

    Raises `OSError` for a link in its place, and for folders that are nested deeper than `DEEPEST`.
    """
    with suppress(FileNotFoundError), open_folder(directory, name) as descriptor:
        if os.fstat(descriptor).st_uid != user:
            _give(descriptor, user, DEEPEST)


def _give(folder: int, user: int, levels: int) -> None:
    if levels == 0:
        raise OSError(errno.ENAMETOOLONG, f"its folders are nested deeper than {DEEPEST} levels")
    os.fchown(folder, user, user)
    with os.scandir(folder) as entries:
        children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in children:
        with suppress(FileNotFoundError):
            if is_directory:
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    _give(inner, user, levels - 1)
                finally:
                    os.close(inner)
            elif os.stat(name, dir_fd=folder, follow_symlinks=False).st_nlink == 1:  # else it is also elsewhere
                os.chown(name, user, user, dir_fd=folder, follow_symlinks=False)


def remove(directory: Path, name: str) -> None:
    """Remove what has that name in a folder: a file, a link, or a folder with all that is in it, however deep.

    Raises `OSError` where that cannot be done; nothing is left to do where it is absent.
    """
    above, last = os.path.split(name)
    with suppress(FileNotFoundError), open_folder(directory, above or ".") as parent:
        if not stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(last, dir_fd=parent)
            return
        top = _entered(parent, last)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(last, dir_fd=parent)


def _empty(top: int) -> None:
    """Folders two levels down are moved up, so that any depth takes two descriptors and no recursion."""
    mark, moved = f".{secrets.token_hex(8)}", 0
    while names := os.listdir(top):
        for name in names:
            if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=top)
                continue
            inner = _entered(top, name)
            try:
                for child in os.listdir(inner):
                    if stat.S_ISDIR(os.stat(child, dir_fd=inner, follow_symlinks=False).st_mode):
                        os.close(_entered(inner, child))
                        moved += 1
                        os.rename(child, f"{mark}-{moved}", src_dir_fd=inner, dst_dir_fd=top)
                    else:
                        os.unlink(child, dir_fd=inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _entered(parent: int, name: str) -> int:
    """A descriptor of a folder, with the rights to change what is in it."""
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        held = os.open(name, getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{held}", stat.S_IRWXU)
        finally:
            os.close(held)
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    if os.fstat(descriptor).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(descriptor, stat.S_IRWXU)
    return descriptor
