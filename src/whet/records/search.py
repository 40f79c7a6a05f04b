"""Full-text search in files of rollouts, faster than they could be parsed.

A line is JSON, and may write a character in several ways: as itself in UTF-8, as `\\u00e9`, and inside a tool call,
which is JSON in JSON, as `\\\\u00e9`. A search takes some characters of the text, looks in a piece of the file for all
the ways in which these can be written in either case, and only then parses the lines where one of them stands, to see
whether the text is in a message.

Case: a letter stands for what it becomes as lower and as upper case where that is a single letter.
"""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from whet.errors import RunError
from whet.messages import readable_text
from whet.records.entries import tool_calls
from whet.records.files import TOO_LONG, parse_row, read_at

PIECE = 1 << 20
"""Bytes looked through between two reports."""
ENOUGH = 3
"""Characters of plain ASCII that are looked for rather than others: fewer would be everywhere."""
_ODD = frozenset('"\\/\x7f')
"""Printable or not, written in more than one way by usual writers of JSON."""
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")
"""In a line with one of these, plain ASCII may be written as escapes; it is always parsed."""


@dataclass(slots=True)
class SearchFound:
    """The matches of a search so far."""

    total: int  # bytes to look through
    done: int = 0
    numbers: list[int] = field(default_factory=list)  # rollouts, in the order of the file
    skipped: int = 0  # lines that are no rollouts


class Query:
    """A text to look for. Raises ValueError for an empty one."""

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("there is no text to look for")
        cases = [_cases(character) for character in text]
        self._pattern = re.compile("".join(f"[{''.join(map(re.escape, sorted(forms)))}]" for forms in cases))
        self._needles = list(_needles(cases))

    def finders(self, piece: bytes) -> Iterator[Callable[[int], int]]:
        """Searches of a piece of a file that together stop in every line the text is in, and in few others.

        Each gives the first match from a position on, -1 where there is none.
        """
        low = piece.lower()  # ASCII letters only, so also the digits of escapes
        escapes = b"\\u" in low
        ascii_only = low.isascii()
        for needle in self._needles:
            if (escapes or b"\\" not in needle) and (needle.isascii() or not ascii_only):
                yield partial(low.find, needle)
        if escapes:
            yield partial(_escaped_ascii, low)

    def is_in(self, row: Mapping[str, Any]) -> bool:
        """Whether the text occurs in the messages of a row, its answer or its error."""
        return any(self._pattern.search(text) is not None for text in texts_of(row))


def _escaped_ascii(piece: bytes, position: int) -> int:
    match = _ESCAPED_ASCII.search(piece, position)
    return -1 if match is None else match.start()


def _cases(character: str) -> frozenset[str]:
    """A letter in either case; other characters as they are."""
    forms = {character}
    while more := {form for one in forms for form in (one.lower(), one.upper()) if len(form) == 1} - forms:
        forms |= more
    return frozenset(forms)


def _needles(cases: Sequence[frozenset[str]]) -> Iterator[bytes]:
    """What to look for in lower-case JSON: a line that matches has one of these, unless ASCII is escaped in it."""
    plain = _longest(cases, lambda forms: all(" " <= form < "\x7f" and form not in _ODD for form in forms))
    other = _longest(cases, lambda forms: not any(form < "\x80" for form in forms))
    if len(plain) >= ENOUGH or not other:
        yield "".join(min(forms).lower() for forms in plain).encode()
        return
    for characters in itertools.product(*other[:2]):
        ways = ((json.dumps(one)[1:-1].encode(), one.encode("utf-8", "surrogatepass")) for one in characters)
        yield from (b"".join(way).lower() for way in itertools.product(*ways))


def _longest(cases: Sequence[frozenset[str]], wanted: Callable[[frozenset[str]], bool]) -> Sequence[frozenset[str]]:
    runs = [list(run) for fits, run in itertools.groupby(cases, wanted) if fits]
    return max(runs, key=len, default=[])


def texts_of(row: Mapping[str, Any]) -> Iterator[str]:
    """What a person reads of a rollout: messages with reasoning and tool calls, the answer, the error."""
    for name in ("prompt", "completion"):
        messages = row.get(name)
        for message in messages if isinstance(messages, list) else [{"content": messages}]:
            if isinstance(message, Mapping):
                yield readable_text(message.get("content"))
                if isinstance(reasoning := message.get("reasoning_content"), str):
                    yield reasoning
                for call in tool_calls(message):
                    yield call.name
                    yield call.arguments
                    if "\\" in call.arguments:
                        yield json.dumps(call.parsed, ensure_ascii=False)
    yield from _strings([row.get("answer"), row.get("error"), row.get("error_chain")])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)


class LinePositions(NamedTuple):
    """Where the lines of rollouts are, by the numbers of these."""

    file: Sequence[int] = ()
    offset: Sequence[int] = ()
    size: Sequence[int] = ()
    damaged: Sequence[int] = ()


def search(
    query: Query,
    numbers: Sequence[int],
    lines: LinePositions,
    paths: Mapping[int, Path],
    opened: Callable[[Path], AbstractContextManager[int]],
) -> Iterator[SearchFound]:
    """Look through the rollouts with these numbers, given in ascending order; `opened` opens one of the files.

    Yields the same `SearchFound` after each piece. Raises `RunError` if a file was changed since it was indexed.
    """
    result = SearchFound(total=sum(map(lines.size.__getitem__, numbers)))
    for piece in _pieces(numbers, lines):
        first, last = piece[0], piece[-1]
        begin, end = lines.offset[first], lines.offset[last] + lines.size[last]
        path = paths[lines.file[first]]
        if end - begin <= TOO_LONG:  # else it is one line, and damaged
            data = _read(path, begin, end - begin, opened)
            for number in _candidates(query, data, piece, lines.offset):
                start = lines.offset[number] - begin
                line = data[start : start + lines.size[number]]
                if not lines.damaged[number] and _matches(query, line, path):
                    result.numbers.append(number)
        result.skipped += sum(lines.damaged[first : last + 1])
        result.done += sum(lines.size[first : last + 1])
        yield result


def _pieces(numbers: Sequence[int], lines: LinePositions) -> Iterator[range]:
    """The numbers in pieces: consecutive lines of one file, together at most `PIECE` bytes, or one longer line."""

    def run_of(item: tuple[int, int]) -> tuple[int, int]:
        position, number = item
        return number - position, lines.file[number]

    for _, items in itertools.groupby(enumerate(numbers), run_of):
        run = [number for _, number in items]
        first, stop = run[0], run[-1] + 1
        while first < stop:
            limit = lines.offset[first] + PIECE
            after = bisect_right(lines.offset, limit, first + 1, stop)
            if after - 1 > first and lines.offset[after - 1] + lines.size[after - 1] > limit:
                after -= 1
            yield range(first, after)
            first = after


def _candidates(query: Query, data: bytes, piece: range, offset: Sequence[int]) -> list[int]:
    """The rollouts of a piece that have to be parsed."""
    begin = offset[piece[0]]
    candidates: set[int] = set()
    for find_next in query.finders(data):
        number, at = piece[0], find_next(0)
        while at >= 0:
            number = bisect_right(offset, begin + at, number, piece.stop) - 1
            candidates.add(number)
            number += 1
            at = -1 if number == piece.stop else find_next(offset[number] - begin)
    return sorted(candidates)


def _read(path: Path, offset: int, size: int, opened: Callable[[Path], AbstractContextManager[int]]) -> bytes:
    try:
        with opened(path) as file:
            data = read_at(file, offset, size)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}.") from None
    if len(data) < size:
        raise RunError(f"{path}: the file was changed since it was listed.")
    return data


def _matches(query: Query, line: bytes, path: Path) -> bool:
    try:
        return query.is_in(parse_row(line, cut=False))
    except ValueError:
        raise RunError(f"{path}: the file was changed since it was listed.") from None
