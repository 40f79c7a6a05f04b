"""The difference of two prompts: removed and added lines, and the words that differ in them. Pure.

Prompts often are a few long lines, so a line that was changed is compared with the one it became, word by word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

Kind = Literal["same", "gone", "new", "hidden"]
CONTEXT = 2
"""Unchanged lines that are shown around a change."""
MOST_WORDS = 2000
"""Words of a line that are compared with those of another; longer lines are only said to differ."""
MOST_PAIRS = 2500
"""Pairs of a removed and an added line that are compared."""
ALIKE = 0.5
"""Share of their words, with the spaces between, that two lines have in common where one became the other."""
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")

Piece = tuple[str, bool]
"""Some of a line, and whether it differs from the line's counterpart."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a difference. `hidden` stands for lines that are the same in both; its text says how many."""

    kind: Kind
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


def difference(before: str, after: str, context: int = CONTEXT) -> list[DiffLine]:
    """The lines of a difference; none where both are equal."""
    if before == after:
        return []
    old, new = before.split("\n"), after.split("\n")
    lines: list[DiffLine] = []
    steps = SequenceMatcher(None, old, new).get_opcodes()
    for index, (tag, old_from, old_to, new_from, new_to) in enumerate(steps):
        if tag == "equal":
            head, tail = (0 if index == end else context for end in (0, len(steps) - 1))
            lines += _shortened(old[old_from:old_to], head, tail)
        else:
            lines += _changed(old[old_from:old_to], new[new_from:new_to])
    return lines


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, list[DiffLine]]:
    """The difference of each component that differs, by its name."""
    names = dict.fromkeys((*before, *after))
    diffs = {name: difference(before.get(name, ""), after.get(name, "")) for name in names}
    return {name: lines for name, lines in diffs.items() if lines}


def whole(text: str) -> list[DiffLine]:
    """A text that is compared with nothing."""
    return [DiffLine("same", ((line, False),)) for line in text.split("\n")]


def _shortened(lines: Sequence[str], head: int, tail: int) -> Iterator[DiffLine]:
    """The first and the last of lines that did not change; one line that is hidden is shown instead."""
    hidden = len(lines) - head - tail
    if hidden <= 1:
        yield from (DiffLine("same", ((line, False),)) for line in lines)
        return
    yield from (DiffLine("same", ((line, False),)) for line in lines[:head])
    yield DiffLine("hidden", ((f"{hidden} lines are the same", False),))
    yield from (DiffLine("same", ((line, False),)) for line in lines[len(lines) - tail :])


def _changed(old: Sequence[str], new: Sequence[str]) -> Iterator[DiffLine]:
    """Removed lines, then added ones; a line with a counterpart has its differing words marked."""
    gone, came = ([_all(line) for line in lines] for lines in (old, new))
    for here, there in _counterparts(old, new):
        gone[here], came[there] = _compare(old[here], new[there])
    yield from (DiffLine("gone", pieces) for pieces in gone)
    yield from (DiffLine("new", pieces) for pieces in came)


def _counterparts(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Which line became which, in order: of the lines after the last counterpart, the one that is most alike."""
    if len(old) * len(new) > MOST_PAIRS:
        return
    words = [Counter(_WORDS.findall(line)) for line in new]
    rest = 0
    for here, line in enumerate(old):
        alike = [_alike(Counter(_WORDS.findall(line)), other) for other in words[rest:]]
        if any(alike):
            yield here, rest + alike.index(max(alike))
            rest += alike.index(max(alike)) + 1


def _alike(a: Counter[str], b: Counter[str]) -> float:
    """The share of their words that two lines have in common; 0 where it is too little to mean anything."""
    words = a.total() + b.total()
    share = 2 * (a & b).total() / words if words else 0.0
    return share if share >= ALIKE and max(a.total(), b.total()) <= MOST_WORDS else 0.0


def _compare(old: str, new: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    a, b = _WORDS.findall(old), _WORDS.findall(new)
    gone: list[Piece] = []
    came: list[Piece] = []
    for tag, a_from, a_to, b_from, b_to in SequenceMatcher(str.isspace, a, b, autojunk=False).get_opcodes():
        for pieces, words in ((gone, a[a_from:a_to]), (came, b[b_from:b_to])):
            if words:
                pieces.append(("".join(words), tag != "equal"))
    return tuple(gone), tuple(came)


def _all(line: str) -> tuple[Piece, ...]:
    return ((line, True),)
