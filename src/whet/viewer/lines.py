"""Lines of a file of rollouts as bytes: reading whole ones, and cutting what is too long to be looked at.

A file may grow or be replaced while it is read, so it is opened anew for each reading and never mapped into memory
(a mapped file that is cut short kills the process that looks at it).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONG = 8 << 20
"""Bytes of a line from which on its long texts and lists are cut before it is parsed."""
TOO_MUCH = 32 << 20
"""Bytes that may be left of a line after cutting: parsed, many small values take ten times the memory."""
TOO_LONG = 256 << 20
"""Bytes of a line that is not read at all."""
LONGEST_TEXT = 64 << 10
"""Bytes that are left of a text or a list of numbers that is cut."""
LEFT_OUT = "left_out_bytes"
"""Key under which a cut row says how many bytes are missing."""

_TEXT_OR_NUMBERS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\d\s,.eE+-]++', re.DOTALL)
_WHOLE_CHARACTERS = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+', re.DOTALL)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for reading."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
        row = json.loads(line)
    except RecursionError:
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
