"""Folders as a stream of bytes (tar), packed on the host and unpacked on the host. No sandbox here: see `transfer`.

What is unpacked was written by hostile code. Only folders and regular files are made, new ones, in a folder that was
empty: where no link is ever made, a path without `..` cannot lead outside. (tarfile's `data` filter does make links,
has had security fixes for them, and is not there in Python 3.11.0 to 3.11.3.) Bytes, entries and headers have caps.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

CHUNK = 64 * 1024
HEADER_BYTES = 1 << 20  # of one entry: long names and attributes are read into memory


class FolderError(Exception):
    """A folder cannot be packed, or the bytes are no folder that may be unpacked."""


def pack(folder: Path, write: Callable[[bytes], object]) -> None:
    """Everything below a folder, without owners; links stay links. Raises FolderError for what no file system keeps."""
    with tarfile.open(fileobj=_Writer(write), mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for parent, names, files in os.walk(folder, onerror=_raise):
            for name in sorted([*names, *files]):
                _pack_one(tar, Path(parent, name), folder)


def unpack(read: Callable[[int], bytes], folder: Path, max_bytes: int, max_files: int) -> tuple[str, ...]:
    """Write what is read into an empty folder. Returns the names of symbolic links and special files, left out.

    Raises FolderError for whatever is not a plain folder of at most so many bytes and entries.
    """
    try:
        return _unpack(_Meter(read), folder, max_bytes, max_files)
    except FolderError:
        raise
    except Exception as error:  # a parser of hostile bytes: whatever it stumbles over is their fault
        raise FolderError(f"its bytes are no folder: {error!r}") from error


def _pack_one(tar: tarfile.TarFile, path: Path, folder: Path) -> None:
    member = tar.gettarinfo(path, arcname=str(path.relative_to(folder)))  # None for a socket
    if member is None or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise FolderError(f"{path} is neither a file, a folder nor a link")
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.isreg():
        with open(path, "rb") as file:
            tar.addfile(member, file)
    else:
        tar.addfile(member)


def _raise(error: OSError) -> None:
    raise error


def _unpack(meter: _Meter, folder: Path, max_bytes: int, max_files: int) -> tuple[str, ...]:
    left_out: list[str] = []
    size = count = unread = 0
    with tarfile.open(fileobj=meter, mode="r|") as tar:  # type: ignore[call-overload]
        while True:
            meter.left = HEADER_BYTES + unread
            member = tar.next()
            if member is None:
                return tuple(left_out)
            tar.members = []  # or it keeps them all
            count, size = count + 1, size + max(0, member.size)
            if count > max_files:
                raise FolderError(f"it has more than {max_files} entries")
            if size > max_bytes:
                raise FolderError(f"it has more than {max_bytes} bytes")
            unread = 0 if member.isreg() else max(0, member.size)
            if not (member.isreg() or member.isdir() or member.islnk()):
                left_out.append(member.name.removeprefix("./"))
                continue
            path = folder / _relative(member.name)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.isreg():
                meter.left = member.size + HEADER_BYTES
                content = tar.extractfile(member)
                assert content is not None
                _write_new(path, content.read, member.mode)
                continue
            twin = folder / _relative(member.linkname)  # a second name of a file that came before: copied
            size += twin.stat().st_size
            if size > max_bytes:
                raise FolderError(f"it has more than {max_bytes} bytes")
            with open(twin, "rb") as file:
                _write_new(path, file.read, twin.stat().st_mode)


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise FolderError(f"it has an entry that leads outside: {name!r}")
    return path


def _write_new(path: Path, read: Callable[[int], bytes], mode: int) -> None:
    """A file that was not there before; of its mode only whether its owner may run it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o755 if mode & 0o100 else 0o644), "wb") as file:
        while data := read(CHUNK):
            file.write(data)


class _Writer:
    """As much of a file as tarfile needs to write a stream."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        self._write(data)
        return len(data)


class _Meter:
    """As much of a file as tarfile needs to read a stream, and no more bytes than the next step may take."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.left = HEADER_BYTES

    def read(self, count: int) -> bytes:
        parts = []
        while count > 0 and (data := self._read(min(count, CHUNK))):
            parts.append(data)
            count -= len(data)
            self.left -= len(data)
            if self.left < 0:
                raise FolderError(f"it has an entry whose header is longer than {HEADER_BYTES} bytes")
        return b"".join(parts)
