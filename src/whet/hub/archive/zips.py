"""A zip archive, read strictly: only what every reader understands in the same way.

The table of contents must account for each byte of the file, in order, so no two entries share bytes (as in bombs of
a few kilobytes), nothing is hidden before, between or after them, and local headers say what the table says. Python's
`zipfile` is not used, because it believes the table and holds a million entries before one can count them.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from whet.hub.archive.problems import MAX_ENTRIES, MAX_RATIO, MAX_UNPACKED, MIB, RATIO_FROM, refused, shown

_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_DESCRIPTOR = 0x0008
_ALLOWED_FLAGS = _DESCRIPTOR | 0x0800 | 0x0006  # a descriptor follows, names are UTF-8, level of compression
STORED, DEFLATED = 0, 8
NEEDED = 20  # the version of zip that has deflate and folders, and nothing after it
_EXTRAS_REFUSED = {0x0001: "64-bit sizes", 0x7075: "a second name", 0x9901: "encryption"}
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One entry, as table and local header agree."""

    name: str
    method: int
    packed: int
    size: int
    crc: int
    start: int  # where its bytes begin


class StrictZip:
    """The entries of a zip archive in order, and their bytes. Raises `ArchiveRefusedError` where it is not strict."""

    def __init__(self, file: BinaryIO, filename: str) -> None:
        self._file = file
        self._filename = filename
        self._size = file.seek(0, 2)
        self.entries = self._read()
        self.by_name = {entry.name: entry for entry in self.entries}

    def _refuse(self, code: str, reason: str, name: str | None = None) -> Exception:
        return refused(self._filename if name is None else name, code, reason)

    def _at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise self._refuse("damaged", "the zip archive is cut short")
        return data

    def _read(self) -> list[ZipEntry]:
        if self._size < _END.size:
            raise self._refuse("not-a-zip", "it is not a zip archive")
        tail = self._at(self._size - _END.size, _END.size)
        mark, disk, first_disk, here, total, length, offset, comment = _END.unpack(tail)
        if mark != b"PK\5\6" or comment:
            zipped = self._at(0, 4) == b"PK\3\4"
            raise self._refuse(
                "not-a-zip",
                "data follows the zip archive, or it has a comment" if zipped else "it is not a zip archive",
            )
        if disk or first_disk or here != total:
            raise self._refuse("spanned", "it is one part of a zip archive of several")
        if total == 0xFFFF or length == 0xFFFFFFFF or offset == 0xFFFFFFFF:
            raise self._refuse("too-many-entries", "it is a 64-bit zip archive, far above the limits")
        if total > MAX_ENTRIES:
            raise self._refuse("too-many-entries", f"it has {total} entries; at most {MAX_ENTRIES} are allowed")
        if offset + length != self._size - _END.size:
            raise self._refuse("hidden-data", "there is data before the zip archive or between its parts")
        entries = list(self._table(self._at(offset, length), total))
        self._check_sizes([entry for entry, _ in entries])
        return self._placed(entries, offset)

    def _table(self, table: bytes, total: int) -> Iterator[tuple[ZipEntry, int]]:
        """The entries of the table of contents, with the offsets of their local headers."""
        at = 0
        for _ in range(total):
            if at + _ENTRY.size > len(table):
                raise self._refuse("damaged", "its table of contents is cut short")
            fields = _ENTRY.unpack_from(table, at)
            mark, made, needed, flags, method, _, _, crc, packed, size, named, extra, comment, disk, _, mode, offset = (
                fields
            )
            rest = table[at + _ENTRY.size : at + _ENTRY.size + named + extra + comment]
            if mark != b"PK\1\2" or len(rest) != named + extra + comment:
                raise self._refuse("damaged", "its table of contents is damaged")
            at += _ENTRY.size + len(rest)
            name = rest[:named].decode("utf-8", "backslashreplace")
            self._check_entry(name, needed, flags, method, rest[named : named + extra], disk)
            self._check_mode(name, made >> 8, mode)
            yield ZipEntry(name, method, packed, size, crc, 0), offset
        if at != len(table):
            raise self._refuse("hidden-data", "its table of contents has more than it counts")

    def _check_entry(self, name: str, needed: int, flags: int, method: int, extra: bytes, disk: int) -> None:
        if flags & _ENCRYPTED:
            raise self._refuse("encrypted", "it is encrypted", name)
        if flags & ~_ALLOWED_FLAGS or disk or needed > NEEDED:
            raise self._refuse("odd-zip", "it uses features of zip that not every reader has", name)
        if method not in (STORED, DEFLATED):
            raise self._refuse("odd-zip", f"it is compressed by method {method}; wheels use deflate", name)
        at = 0
        while at + 4 <= len(extra):
            kind, length = struct.unpack_from("<2H", extra, at)
            if kind in _EXTRAS_REFUSED:
                raise self._refuse("odd-zip", f"it has {_EXTRAS_REFUSED[kind]} in an extra field", name)
            at += 4 + length
        if at != len(extra):
            raise self._refuse("odd-zip", "its extra field is damaged", name)

    def _check_mode(self, name: str, system: int, mode: int) -> None:
        kind = stat.S_IFMT(mode >> 16) if system in (3, 19) or mode >> 16 else 0
        if kind == stat.S_IFLNK:
            raise self._refuse("link", "it is a link", name)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise self._refuse("special", "it is a device or another special file", name)
        if (kind == stat.S_IFDIR) != name.endswith("/") and kind:
            raise self._refuse("odd-zip", "its name and its kind contradict each other", name)

    def _check_sizes(self, entries: list[ZipEntry]) -> None:
        total = sum(entry.size for entry in entries)
        if total > MAX_UNPACKED:
            raise self._refuse(
                "too-large", f"it has {total >> 20} MiB unpacked; at most {MAX_UNPACKED // MIB} are allowed"
            )
        for entry in entries:
            if entry.size > RATIO_FROM and entry.size > MAX_RATIO * max(entry.packed, 1):
                raise self._refuse(
                    "bomb",
                    f"it expands {entry.size // max(entry.packed, 1)} times; at most {MAX_RATIO} are allowed",
                    entry.name,
                )
            if entry.name.endswith("/") and (entry.size or entry.packed):
                raise self._refuse("odd-zip", "it is a folder with content", entry.name)
            if entry.method == STORED and entry.size != entry.packed:
                raise self._refuse("odd-zip", "its two sizes contradict each other", entry.name)
        if total > RATIO_FROM and total > MAX_RATIO * self._size:
            raise self._refuse("bomb", f"it expands {total // self._size} times; at most {MAX_RATIO} are allowed")

    def _placed(self, table: list[tuple[ZipEntry, int]], end: int) -> list[ZipEntry]:
        """The entries with the offsets of their bytes, which follow one another without gaps."""
        entries, at = [], 0
        for entry, offset in sorted(table, key=lambda one: one[1]):
            if offset != at:
                code, what = (
                    ("overlap", "it shares bytes with another entry")
                    if offset < at
                    else (
                        "hidden-data",
                        "there is data before it that no entry has",
                    )
                )
                raise self._refuse(code, what, entry.name)
            fields = _LOCAL.unpack(self._at(at, _LOCAL.size))
            mark, needed, flags, method, _, _, crc, packed, size, named, extra = fields
            rest = self._at(at + _LOCAL.size, named + extra)
            late = bool(flags & _DESCRIPTOR)
            same = (crc, packed, size) == (entry.crc, entry.packed, entry.size) or (
                late and not (crc or packed or size)
            )
            name = rest[:named].decode("utf-8", "backslashreplace")
            if mark != b"PK\3\4" or name != entry.name or method != entry.method or not same:
                raise self._refuse("ambiguous", f"its local header says otherwise ({shown(name)})", entry.name)
            self._check_entry(name, needed, flags, method, rest[named:], 0)
            start = at + _LOCAL.size + named + extra
            at = start + entry.packed
            if late:
                at += self._descriptor(entry, at)
            entries.append(ZipEntry(entry.name, method, entry.packed, entry.size, entry.crc, start))
        if at != end:
            raise self._refuse(
                "hidden-data" if at < end else "overlap", "its entries do not end where its table begins"
            )
        return entries

    def _descriptor(self, entry: ZipEntry, at: int) -> int:
        """The length of the descriptor after an entry whose sizes were not known when it was begun."""
        plain = struct.pack("<3L", entry.crc, entry.packed, entry.size)
        for text in (b"PK\7\x08" + plain, plain):
            if self._at(at, len(text)) == text:
                return len(text)
        raise self._refuse("ambiguous", "its data descriptor says otherwise", entry.name)

    def pieces(self, entry: ZipEntry) -> Iterator[bytes]:
        """The content of an entry, never more than it declares. Raises `ArchiveRefusedError` where it differs."""
        inflate = zlib.decompressobj(-15) if entry.method == DEFLATED else None
        left, crc, at, end = entry.size, 0, entry.start, entry.start + entry.packed
        while at < end:
            raw = self._at(at, min(CHUNK, end - at))
            at += len(raw)
            while raw:
                try:
                    piece = inflate.decompress(raw, left + 1) if inflate else raw
                except zlib.error as error:
                    raise self._refuse("damaged", f"its compressed data is damaged ({error})", entry.name) from None
                raw = inflate.unconsumed_tail if inflate else b""
                left -= len(piece)
                if left < 0:
                    raise self._refuse("bomb", "it has more bytes than it declares", entry.name)
                crc = zlib.crc32(piece, crc)
                yield piece
        whole = inflate is None or (inflate.eof and not inflate.unused_data)
        if left or crc != entry.crc or not whole:
            raise self._refuse("damaged", "its bytes are not those that it declares", entry.name)

    def read(self, entry: ZipEntry, most: int) -> bytes:
        """The content of an entry of at most `most` bytes."""
        if entry.size > most:
            raise self._refuse("too-large", f"it has {entry.size} bytes; at most {most} are allowed", entry.name)
        return b"".join(self.pieces(entry))
