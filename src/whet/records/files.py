"""Files of rollouts: which there are, and reading their lines as bytes.

    results.jsonl                                                           part ""
    rollouts/eval_before.jsonl, step_000001.jsonl, eval_step_000050.jsonl   part "eval_before", step 0; ...

A file may grow or be replaced while it is read, so it is opened for each reading and never mapped into memory (a
mapped file that is truncated kills the process that reads it). Texts and lists of a line that is too long to show are
cut before it is parsed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from whet.parsing import NestingError, parse_json
from whet.system.untrusted import NOT_INSIDE, open_inside, open_named

SUFFIX = ".jsonl"
LONG = 8 << 20
"""Bytes of a line above which its long texts and lists are cut before it is parsed."""
TOO_MUCH = 32 << 20
"""Bytes that may be left of a line after cutting: parsed, many small values take ten times the memory."""
TOO_LONG = 256 << 20
"""Bytes of a line that is not read at all."""
LONGEST_TEXT = 64 << 10
"""Bytes that are kept of a text or a list of numbers that is cut."""
LEFT_OUT = "left_out_bytes"
"""Key under which a cut row says how many bytes are missing."""

_NUMBERED = re.compile(r"(eval_)?step_(\d+)")
_TEXT_OR_NUMBERS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\d\s,.eE+-]++', re.DOTALL)
_WHOLE_CHARACTERS = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+', re.DOTALL)


class RolloutFile(NamedTuple):
    """A file of rollouts, as it is now."""

    name: str  # "" where there is only one
    step: int | None
    size: int
    modified: int  # nanoseconds
    inode: int


@dataclass(frozen=True, slots=True)
class RolloutFiles:
    """A file of rollouts, or a directory of such files."""

    path: Path
    root: Path | None = None
    """Where it is given, a directory above `path` whose content may be hostile: links in it are not followed."""

    def parts(self) -> dict[str, RolloutFile]:
        """The files that exist, by name, in the order in which they were written."""
        try:
            if self.root is not None and self.path.is_symlink():
                raise OSError(NOT_INSIDE, os.strerror(NOT_INSIDE), str(self.path))
            if not self.path.is_dir():
                status = self.path.stat(follow_symlinks=self.root is None)
                return {"": part_of("", status, step_of(self.path.stem))}
            with os.scandir(self.path) as entries:
                files = [
                    (entry.name.removesuffix(SUFFIX), entry.stat())
                    for entry in entries
                    if entry.name.endswith(SUFFIX)
                    and not entry.name.startswith(".")
                    and entry.is_file(follow_symlinks=self.root is None)
                ]
        except FileNotFoundError:
            return {}
        files.sort(key=lambda file: order_of(file[0]))
        return {name: part_of(name, stat, step_of(name)) for name, stat in files}

    def file(self, part: str) -> Path:
        return self.path if part == "" else self.path / f"{part}{SUFFIX}"

    def opened(self, path: Path) -> AbstractContextManager[int]:
        """A descriptor of one of the files for reading. Raises `OSError` where there is none, or a link."""
        if self.root is not None:
            return open_inside(self.root, str(path.relative_to(self.root)))
        return open_named(path.parent, path.name)


def part_of(name: str, stat: os.stat_result, step: int | None) -> RolloutFile:
    """A file as `stat` finds it."""
    # Some file systems number with 64 bits, SQLite with 63.
    return RolloutFile(name, step, stat.st_size, stat.st_mtime_ns, stat.st_ino & (2**63 - 1))


@lru_cache(maxsize=1 << 16)  # the directory of a run is listed several times a second
def step_of(part: str) -> int | None:
    """The step after which a file of a run was written; None where its name does not say."""
    if part == "eval_before":
        return 0
    numbered = _NUMBERED.fullmatch(part)
    return int(numbered[2]) if numbered else None


@lru_cache(maxsize=1 << 16)
def order_of(part: str) -> tuple[float, bool, str]:
    """Sorts the files of a run: by step, what was trained before what was evaluated then."""
    step = step_of(part)
    return (float("inf") if step is None else step, part.startswith("eval"), part)


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """`size` bytes, or as many as there are."""
    pieces: list[bytes] = []
    while size > 0:
        piece = os.pread(descriptor, size, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def find_newline(descriptor: int, offset: int, end: int, block: int = 1 << 20) -> int | None:
    """Where the next newline is, from `offset` on; None where there is none before `end`."""
    while piece := os.pread(descriptor, min(block, max(0, end - offset)), offset):
        at = piece.find(b"\n")
        if at >= 0:
            return offset + at
        offset += len(piece)
    return None


def parse_row(line: bytes, *, cut: bool = True) -> dict[str, Any]:
    """The JSON object of a line. Raises `ValueError` with the reason, in words, where it is none.

    Of a line above `LONG` bytes, texts and lists of numbers are cut, unless `cut` is false; the row then says under
    `LEFT_OUT` by how much.
    """
    left_out = 0
    if len(line) > LONG and cut:
        short = shortened(line)
        left_out, line = len(line) - len(short), short
        if len(line) > TOO_MUCH:
            raise ValueError(f"not read: {len(line):,} bytes in many small values")
    try:
        row = parse_json(line)
    except NestingError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError:
        raise ValueError("not JSON that can be read: a number with thousands of digits") from None
    if not isinstance(row, dict):
        raise ValueError(f"not an object, but {_kind(row)}")
    if left_out:
        row[LEFT_OUT] = left_out
    return row


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def shortened(line: bytes, longest: int = LONGEST_TEXT) -> bytes:
    """JSON with every text and every list of numbers cut to about `longest` bytes; a cut text says so at its end."""
    pieces: list[bytes] = []
    kept_to = 0
    for match in _TEXT_OR_NUMBERS.finditer(line):
        start, end = match.span()
        if end - start <= longest:
            continue
        short = _short_text if line[start] == ord('"') else _short_numbers
        pieces += line[kept_to:start], short(line[start:end], longest)
        kept_to = end
    return b"".join((*pieces, line[kept_to:]))


def _short_text(text: bytes, longest: int) -> bytes:
    whole = _WHOLE_CHARACTERS.match(text, 1, longest)
    assert whole is not None  # it matches the empty text too
    kept = whole.group().decode("utf-8", "ignore").encode()
    return b'"%s\\u2026 [%d bytes more]"' % (kept, len(text) - 2 - len(kept))


def _short_numbers(numbers: bytes, longest: int) -> bytes:
    """The first numbers; a comma at the end stays, since something follows it."""
    kept, comma, _ = numbers[:longest].rpartition(b",")
    if not comma:
        return numbers
    return kept + (b"," if numbers.rstrip().endswith(b",") else b"")


class FileLine(NamedTuple):
    """One line of a file, without its newline."""

    offset: int
    number: int  # from 1
    size: int
    content: bytes | None  # None: above `TOO_LONG` bytes


class Mark(NamedTuple):
    """How far a file has been read."""

    position: int = 0
    newlines: int = 0  # before `position`
    ended: bool = True  # whether the last line read has its newline


@dataclass(frozen=True, slots=True)
class FileBlock:
    """Consecutive lines, without empty ones, and where they end."""

    lines: list[FileLine]
    end: Mark


def next_block(file: int, mark: Mark, size: int, limit: int) -> FileBlock | None:
    """The whole lines from `mark` on, about `limit` bytes of them but at least one; None where there is none.

    Of the file, only its first `size` bytes are looked at: it may have grown since. An object that ends them, without
    a newline, is a whole line: no part of it would be an object.
    """
    data = read_at(file, mark.position, min(limit, size - mark.position))
    if b"\n" not in data:
        newline = find_newline(file, mark.position + len(data), size)
        if newline is None:
            return _last(file, mark, size)
        whole = newline + 1 - mark.position
        if whole > TOO_LONG:
            line = FileLine(mark.position, mark.newlines + 1, whole - 1, None)
            return FileBlock([line], Mark(newline + 1, mark.newlines + 1))
        data = read_at(file, mark.position, whole)
    contents = data.split(b"\n")
    rest = contents.pop()
    end = Mark(mark.position + len(data) - len(rest), mark.newlines + len(contents))
    return FileBlock(list(_lines(contents, mark)), end)


def _last(file: int, mark: Mark, size: int) -> FileBlock | None:
    """The end of a file that has no newline, where it is a rollout all the same."""
    if size - mark.position > LONG or not mark.ended:
        return None
    data = read_at(file, mark.position, size - mark.position)
    try:
        parse_row(data)
    except ValueError:
        return None
    return FileBlock(list(_lines([data], mark)), Mark(mark.position + len(data), mark.newlines, ended=False))


def _lines(contents: Sequence[bytes], start: Mark) -> Iterator[FileLine]:
    offset = start.position
    for number, content in enumerate(contents, start=start.newlines + 1):
        if content and not content.isspace():
            yield FileLine(offset, number, len(content), content)
        offset += len(content) + 1
