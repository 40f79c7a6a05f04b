"""The next whole lines of a file that may be growing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from whet.viewer.lines import LONG, TOO_LONG, find_newline, parse_row, read_at


class Line(NamedTuple):
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
class Piece:
    """Consecutive lines, without empty ones, and where they end."""

    lines: list[Line]
    end: Mark


def next_piece(file: int, mark: Mark, size: int, limit: int) -> Piece | None:
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
            line = Line(mark.position, mark.newlines + 1, whole - 1, None)
            return Piece([line], Mark(newline + 1, mark.newlines + 1))
        data = read_at(file, mark.position, whole)
    contents = data.split(b"\n")
    rest = contents.pop()
    end = Mark(mark.position + len(data) - len(rest), mark.newlines + len(contents))
    return Piece(list(_lines(contents, mark)), end)


def _last(file: int, mark: Mark, size: int) -> Piece | None:
    """The end of a file that has no newline, where it is a rollout all the same."""
    if size - mark.position > LONG or not mark.ended:
        return None
    data = read_at(file, mark.position, size - mark.position)
    try:
        parse_row(data)
    except ValueError:
        return None
    return Piece(list(_lines([data], mark)), Mark(mark.position + len(data), mark.newlines, ended=False))


def _lines(contents: Sequence[bytes], start: Mark) -> Iterator[Line]:
    offset = start.position
    for number, content in enumerate(contents, start=start.newlines + 1):
        if content and not content.isspace():
            yield Line(offset, number, len(content), content)
        offset += len(content) + 1
