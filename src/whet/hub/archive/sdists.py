"""The checks of a source archive: a gzip file with one tar archive, read strictly in one pass of bounded size.

Python's `tarfile` is not used: it believes sizes, follows extensions that readers understand differently (sparse
files, sizes in extended headers) and holds whole extended headers in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from whet.hub.archive.names import entry_problems, module_of
from whet.hub.archive.problems import (
    MAX_ENTRIES,
    MAX_METADATA,
    MAX_RATIO,
    MAX_UNPACKED,
    MIB,
    RATIO_FROM,
    SHOWN,
    ArchiveRefusedError,
    Problem,
    refused,
)
from whet.hub.archive.wheels import metadata_problems, parse_metadata
from whet.hub.archive.zips import StrictZip

BLOCK = 512
CHUNK = 1 << 16
MAX_HEADER = 1 << 16
_FILES, _FOLDER, _LONG_NAME, _EXTENDED, _GLOBAL = (b"0", b"\0"), b"5", b"L", b"x", b"g"
_LINKS, _DEVICES = (b"1", b"2", b"K"), (b"3", b"4", b"6")
_EXTENDED_ALLOWED = frozenset({"path", "mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment"})


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file or folder of a tar archive."""

    name: str
    size: int


def check_sdist(file: BinaryIO, filename: str, name: str, version: str) -> list[TarMember]:
    """The members of a source archive of the environment `name` at `version`. Raises `ArchiveRefusedError`."""
    top = f"{module_of(name)}-{version}"
    if filename != f"{top}.tar.gz":
        raise refused(filename, "filename", f"a source archive of {name} {version} is called {top}.tar.gz")
    described = b""
    members = []
    for member, content in walk(file, filename, {f"{top}/PKG-INFO"}):
        members.append(member)
        described = content or described
    problems = list(entry_problems([member.name for member in members]))
    outside = sorted({member.name.partition("/")[0] for member in members} - {top})
    problems += [Problem(one, "top-level", f"everything has to be in the folder {top}") for one in outside]
    names = {member.name for member in members}
    problems += [
        Problem(f"{top}/{needed}", "missing", "it is missing")
        for needed in ("PKG-INFO", "pyproject.toml")
        if f"{top}/{needed}" not in names
    ]
    if described:
        metadata = parse_metadata(described, f"{top}/PKG-INFO")
        problems += metadata_problems(metadata, f"{top}/PKG-INFO", name, version)
    if problems:
        raise ArchiveRefusedError(problems[:SHOWN])
    return members


def walk(file: BinaryIO, filename: str, wanted: set[str]) -> Iterator[tuple[TarMember, bytes]]:
    """Each member of a gzipped tar archive, with its content where its name is in `wanted` and it is short enough.

    Raises `ArchiveRefusedError` at the first thing that is not a plain file or folder.
    """
    stream = _Unpacked(file, filename)
    name: str | None = None
    count = 0
    while True:
        block = stream.take(BLOCK)
        if block == b"\0" * BLOCK:
            stream.finish()
            return
        header = _header(block, filename)
        kind, size = header[0], header[1]
        count += 1
        if count > MAX_ENTRIES:
            raise refused(filename, "too-many-entries", f"it has more than {MAX_ENTRIES} entries")
        if kind in (_LONG_NAME, _EXTENDED, _GLOBAL):
            if size > MAX_HEADER:
                raise refused(filename, "odd-tar", "an extended header of it is too long")
            data = stream.take(size)
            stream.skip(-size % BLOCK)
            if kind == _LONG_NAME:
                name = data.rstrip(b"\0").decode("utf-8", "backslashreplace")
            else:
                extended_name = _extended(data, filename)
                name = extended_name if kind == _EXTENDED and extended_name is not None else name
            continue
        member = _member(kind, name if name is not None else header[2], size, filename)
        name = None
        keep = member.name in wanted and size <= MAX_METADATA
        content = stream.take(size) if keep else b""
        stream.skip((0 if keep else size) + (-size % BLOCK))
        yield member, content


def _member(kind: bytes, name: str, size: int, filename: str) -> TarMember:
    if kind in _LINKS:
        raise refused(name, "link", "it is a link")
    if kind in _DEVICES:
        raise refused(name, "special", "it is a device or another special file")
    if kind == _FOLDER:
        if size:
            raise refused(name, "odd-tar", "it is a folder with content")
        return TarMember(name.rstrip("/") + "/", 0)
    if kind not in _FILES or name.endswith("/"):
        raise refused(name or filename, "odd-tar", "it is of a kind that not every reader understands")
    return TarMember(name, size)


def _header(block: bytes, filename: str) -> tuple[bytes, int, str]:
    """Kind, size and name of a header."""
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    if _octal(block[148:156], filename) != total or block[257:262] != b"ustar":
        raise refused(filename, "damaged", "a header of its tar archive is damaged")
    prefix = block[345:500].split(b"\0")[0] if block[257:265] == b"ustar\x0000" else b""
    name = block[:100].split(b"\0")[0]
    whole = prefix + b"/" + name if prefix else name
    return block[156:157], _octal(block[124:136], filename), whole.decode("utf-8", "backslashreplace")


def _octal(field: bytes, filename: str) -> int:
    text = field.split(b"\0")[0].strip()
    if not text.isdigit() or set(text) & set(b"89"):
        raise refused(filename, "odd-tar", "a header of its tar archive has a number that is not octal")
    return int(text, 8)


def _extended(data: bytes, filename: str) -> str | None:
    """The path of an extended header. Refuses what changes how the rest is read."""
    path = None
    while data:
        length, space, _ = data.partition(b" ")
        count = int(length) if space and length.isdigit() and len(length) < 7 else 0
        record, data = data[len(length) + 1 : count], data[count:]
        key, equals, value = record.partition(b"=")
        if not count or not equals or not value.endswith(b"\n"):
            raise refused(filename, "odd-tar", "an extended header of it is damaged")
        if key.decode("ascii", "replace") not in _EXTENDED_ALLOWED:
            raise refused(filename, "odd-tar", f"an extended header of it sets {key[:40]!r}, which readers differ on")
        if key == b"path":
            path = value[:-1].decode("utf-8", "backslashreplace")
    return path


class _Unpacked:
    """The bytes of a gzip file, unpacked as they are read and never beyond the limits."""

    def __init__(self, file: BinaryIO, filename: str) -> None:
        self._file, self._filename = file, filename
        self._size = file.seek(0, 2)
        file.seek(0)
        self._inflate = zlib.decompressobj(31)
        self._ready = bytearray()
        self._total = 0

    def take(self, size: int) -> bytes:
        while len(self._ready) < size:
            if not self._more():
                raise refused(self._filename, "damaged", "it is cut short, or no gzipped tar archive")
        piece = bytes(self._ready[:size])
        del self._ready[:size]
        return piece

    def skip(self, size: int) -> None:
        while size > 0:
            step = min(size, CHUNK)
            self.take(step)
            size -= step

    def finish(self) -> None:
        """Only padding may follow."""
        while True:
            if any(self._ready):
                raise refused(self._filename, "hidden-data", "data follows the tar archive")
            self._ready.clear()
            if not self._more():
                break
        if not self._inflate.eof:
            raise refused(self._filename, "damaged", "it is cut short")
        if self._inflate.unused_data or self._file.read(1):
            raise refused(self._filename, "hidden-data", "data follows the gzip file")

    def _more(self) -> bool:
        if self._inflate.eof:
            return False
        raw = self._inflate.unconsumed_tail or self._file.read(CHUNK)
        try:
            piece = self._inflate.decompress(raw, CHUNK)
        except zlib.error:
            raise refused(self._filename, "damaged", "it is no gzip file, or a damaged one") from None
        self._total += len(piece)
        if self._total > MAX_UNPACKED:
            raise refused(self._filename, "too-large", f"it has more than {MAX_UNPACKED // MIB} MiB unpacked")
        if self._total > RATIO_FROM and self._total > MAX_RATIO * self._size:
            raise refused(self._filename, "bomb", f"it expands more than {MAX_RATIO} times")
        self._ready += piece
        return bool(piece or raw)


# What is in an archive that passed the checks: its list of files, and one file of it.


def list_contents(stream: BinaryIO, filename: str) -> list[tuple[str, int]]:
    """Paths and sizes of the files."""
    if filename.endswith(".whl"):
        return [(entry.name, entry.size) for entry in StrictZip(stream, filename).entries if entry.name[-1:] != "/"]
    return [(member.name, member.size) for member, _ in walk(stream, filename, set()) if member.name[-1:] != "/"]


def read_content(stream: BinaryIO, filename: str, path: str) -> bytes | None:
    """The content of one file of at most 1 MiB; None where there is none, or it is longer."""
    if filename.endswith(".whl"):
        archive = StrictZip(stream, filename)
        entry = archive.by_name.get(path)
        return archive.read(entry, MAX_METADATA) if entry is not None and entry.size <= MAX_METADATA else None
    for member, content in walk(stream, filename, {path}):
        if member.name == path:
            return content if member.size <= MAX_METADATA and path[-1:] != "/" else None
    return None
