"""The list of rollouts: what one shows (`Head`), and filters, orders and totals, computed on an index's columns.

A head holds what fits into an index: numbers, names and the first words of the question. The whole rollout is read
from its file when it is shown (`store.py`). A column of 200,000 numbers takes 0.2 to 1.6 MB; Python sorts it in some
60 ms.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whet.viewer.entries import NUMBERS
from whet.viewer.files import order_of
from whet.viewer.index import FileState, Index, Stamp

SortColumn = Literal[
    "file",
    "environment",
    "example",
    "reward",
    "advantage",
    "error",
    "stop_condition",
    "truncated",
    "input_tokens",
    "output_tokens",
    "turns",
    "duration",
    "size",
]
"""`file` is the order of the files and of the lines in them; `example` the order of the tasks."""


@dataclass(frozen=True, slots=True)
class Head:
    """One rollout in a list. What a row does not say is None; text is as written, not escaped."""

    number: int  # of the rollout in its store, from 0
    part: str = ""  # "" in an evaluation; in a run the file's name: step_000012, eval_before
    line: int = 0  # in its file, from 1
    size: int = 0  # bytes of the line
    environment: str = ""
    example_id: int | str | None = None
    group: int = 0  # equal for all rollouts of a group: a key that is not shown
    place: int = 0  # which rollout of its group, from 0
    reward: float | None = None
    advantage: float | None = None
    error: str | None = None  # class of the error
    stop_condition: str | None = None
    candidate: str | None = None  # of a search for prompts: its id
    sampling: str | None = None  # of a run's held-out tasks: greedy, temperature 1
    truncated: bool = False
    input_tokens: float | None = None
    output_tokens: float | None = None
    turns: int = 0
    duration: float | None = None  # seconds
    step: int | None = None  # of training; None in an evaluation of its own
    question: str = ""  # first words, on one line
    problem: str | None = None  # why there is no rollout to be shown; all else is then empty


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rollouts are listed: all that fit every field that is set."""

    environment: str | None = None
    part: str | None = None
    failed: bool | None = None  # with an error, or a line that cannot be read
    error: str | None = None  # class of the error
    stop_condition: str | None = None
    candidate: str | None = None
    truncated: bool | None = None
    reward_from: float | None = None  # inclusive; a rollout without a reward never fits
    reward_to: float | None = None  # inclusive
    group: int | None = None
    numbers: frozenset[int] | None = None  # what a search found


@dataclass(frozen=True, slots=True)
class Sort:
    """The order of a list. Equal rollouts keep the order of the file; what has no value comes last either way."""

    column: SortColumn = "file"
    descending: bool = False


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How much of the files is indexed."""

    rollouts: int  # listed so far
    damaged: int  # of these, lines that are no rollouts
    bytes_done: int
    bytes_total: int
    torn: int  # bytes after the last whole line: being written now, or left by a kill
    generation: int  # grows when numbers given before are void, because a file was replaced or cut
    failure: str | None = None  # why no more is read, in a line

    @property
    def complete(self) -> bool:
        """Whether every whole line is listed."""
        return self.bytes_done + self.torn >= self.bytes_total


@dataclass(frozen=True, slots=True)
class ListTotals:
    """Over the rollouts of a list."""

    rollouts: int
    mean_reward: float | None  # of those with a reward and without an error
    failed: int
    truncated: int


TEXTS_KEPT = 256
"""Chunks whose texts stay in memory: that many screens of an unsorted list, or rows of a sorted one."""


class IndexColumns:
    """The columns of an index in memory, as of the last `refresh`, which comes first, inside the same `Index.reading`.

    Not safe for concurrent use: callers with several threads hold a lock.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._stamp: Stamp | None = None

    def refresh(self) -> None:
        """Load what was added to the index."""
        stamp = self._index.stamp()
        if stamp == self._stamp:
            return
        if self._stamp is None or stamp.generation != self._stamp.generation:
            self._arrays: dict[str, tuple[int, array[Any]]] = {}
            self._texts: OrderedDict[int, list[list[Any]]] = OrderedDict()
            self._names: dict[int, str] = {}
            self._chunks: list[int] = []
            self._starts: list[int] = [0]
            self.damaged = 0
        for chunk, count, damaged in self._index.counts(after=self._chunks[-1] if self._chunks else 0):
            self._chunks.append(chunk)
            self._starts.append(self._starts[-1] + count)
            self.damaged += damaged
        self.files: dict[int, FileState] = dict(self._index.files().values())
        self._stamp = stamp

    @property
    def generation(self) -> int:
        """Grows when the numbers of rollouts given before are void."""
        assert self._stamp is not None
        return self._stamp.generation

    @property
    def count(self) -> int:
        """Rollouts."""
        return self._starts[-1]

    def __getitem__(self, name: str) -> array[Any]:
        """A column; at least `count` numbers, and more where the index has grown since."""
        last, values = self._arrays.get(name, (0, array(NUMBERS[name])))
        if len(values) < self.count:
            values.extend(self._index.column(name, after=last, to=self._chunks[-1]))
            self._arrays[name] = (self._chunks[-1], values)
        return values

    def name(self, number: int) -> str:
        """An environment, a class of error, a stop condition, a candidate or a way of sampling; "" for none."""
        if number not in self._names and number:
            self._names = self._index.names()
        return self._names.get(number, "")

    def texts(self, number: int) -> list[Any]:
        """[example_id, question, problem] of a rollout."""
        place = bisect_right(self._starts, number) - 1
        chunk = self._chunks[place]
        texts = self._texts.pop(chunk, None) or self._index.texts(chunk)
        self._texts[chunk] = texts
        if len(self._texts) > TEXTS_KEPT:
            self._texts.popitem(last=False)
        return texts[number - self._starts[place]]

    def head(self, number: int, environment: str) -> Head:
        """The head of a rollout; `environment` where its row names none.

        A number that is void since a file was replaced gives a head that says so: a screen may still show the old list.
        """
        if not 0 <= number < self.count:
            return Head(number, problem="no longer there: the file was changed")
        example_id, question, problem = self.texts(number)
        file = self.files[self["file"][number]]
        return Head(
            number=number,
            part=file.part,
            line=self["line"][number],
            size=self["size"][number],
            environment=self.name(self["environment"][number]) or environment,
            example_id=example_id,
            group=self["group"][number],
            place=self["place"][number],
            reward=_known(self["reward"][number]),
            advantage=_known(self["advantage"][number]),
            error=self.name(self["error"][number]) or None,
            stop_condition=self.name(self["stop_condition"][number]) or None,
            candidate=self.name(self["candidate"][number]) or None,
            sampling=self.name(self["sampling"][number]) or None,
            truncated=bool(self["truncated"][number]),
            input_tokens=_known(self["input_tokens"][number]),
            output_tokens=_known(self["output_tokens"][number]),
            turns=self["turns"][number],
            duration=_known(self["duration"][number]),
            step=file.step,
            question=question,
            problem=problem or None,
        )

    def select(self, filter: Filter, environment: str) -> Sequence[int]:
        """The rollouts that fit, in the order of their numbers."""
        numbers: Sequence[int] = range(self.count)
        if filter.numbers is not None:
            numbers = sorted(number for number in filter.numbers if 0 <= number < self.count)
        names = {name: getattr(filter, name) for name in ("error", "stop_condition", "candidate")}
        for column, name in names.items():
            if name is not None:
                numbers = _equal(numbers, self[column], self._numbers_of(name))
        if filter.environment is not None:
            ids = self._numbers_of(filter.environment) | ({0} if filter.environment == environment else set())
            numbers = _equal(numbers, self["environment"], ids)
            damaged = self["damaged"]
            numbers = [number for number in numbers if not damaged[number]]
        if filter.part is not None:
            ids = {number for number, state in self.files.items() if state.part == filter.part}
            numbers = _equal(numbers, self["file"], ids)
        if filter.group is not None:
            numbers = _equal(numbers, self["group"], {filter.group})
        if filter.truncated is not None:
            numbers = _equal(numbers, self["truncated"], {int(filter.truncated)})
        if filter.failed is not None:
            error, damaged, failed = self["error"], self["damaged"], filter.failed
            numbers = [number for number in numbers if (error[number] != 0 or damaged[number] != 0) is failed]
        rewards = self["reward"] if (filter.reward_from, filter.reward_to) != (None, None) else ()
        if filter.reward_from is not None:
            low = filter.reward_from
            numbers = [number for number in numbers if rewards[number] >= low]
        if filter.reward_to is not None:
            high = filter.reward_to
            numbers = [number for number in numbers if rewards[number] <= high]
        return numbers

    def order(self, numbers: Sequence[int], sort: Sort, environment: str) -> Sequence[int]:
        """`numbers`, which are given in ascending order, in another; where equal, they stay in that of the files."""
        numbers = self._in_order_of_files(numbers)
        if sort.column == "file":
            return numbers[::-1] if sort.descending else numbers
        values: Sequence[Any] = self[sort.column]
        if sort.column in ("environment", "error", "stop_condition"):
            default = environment if sort.column == "environment" else ""
            ids = set(values)
            texts = {number: (self.name(number) or default).casefold() for number in ids}
            ranks = {
                text: float(rank) if text else float("nan") for rank, text in enumerate(sorted(set(texts.values())))
            }
            rank_of = {number: ranks[text] for number, text in texts.items()}
            values = [rank_of[number] for number in values]
        known = [number for number in numbers if values[number] == values[number]]
        unknown = (
            [] if len(known) == len(numbers) else [number for number in numbers if values[number] != values[number]]
        )
        known.sort(key=values.__getitem__, reverse=sort.descending)
        return known + unknown

    def totals(self, numbers: Sequence[int]) -> ListTotals:
        """Of rollouts by their numbers."""
        rewards, errors, damaged, truncated = (self[name] for name in ("reward", "error", "damaged", "truncated"))
        scored = [reward for number in numbers if not errors[number] and (reward := rewards[number]) == reward]
        return ListTotals(
            rollouts=len(numbers),
            mean_reward=math.fsum(scored) / len(scored) if scored else None,
            failed=sum(1 for number in numbers if errors[number] or damaged[number]),
            truncated=sum(map(truncated.__getitem__, numbers)),
        )

    def counts_of_names(self, column: str, default: str) -> dict[str, int]:
        """How often each name of a column is there, `default` for none, most frequent first."""
        ids = itertools.compress(self[column], map((0).__eq__, self["damaged"]))
        named: Counter[str] = Counter()
        for number, count in Counter(ids).items():
            named[self.name(number) or default] += count
        return {name: count for name, count in named.most_common() if name}

    def counts_of_parts(self) -> dict[str, int]:
        """How many rollouts each file has, in the order of the files."""
        parts = {self.files[file].part: count for file, count in Counter(self["file"]).items()}
        return {part: parts[part] for part in sorted(parts, key=order_of)}

    def _in_order_of_files(self, numbers: Sequence[int]) -> Sequence[int]:
        """Files of a run may have been indexed in another order than they were written in."""
        ranked = sorted(self.files, key=lambda number: order_of(self.files[number].part))
        if ranked == sorted(self.files):
            return numbers
        ranks = {number: rank for rank, number in enumerate(ranked)}
        files = self["file"]
        return sorted(numbers, key=lambda number: ranks[files[number]])

    def _numbers_of(self, name: str) -> set[int]:
        self._names = self._index.names()
        return {number for number, text in self._names.items() if text == name}


def _equal(numbers: Sequence[int], column: array[Any], wanted: set[int]) -> Sequence[int]:
    if len(wanted) == 1 and isinstance(numbers, range):
        (one,) = wanted
        return list(itertools.compress(numbers, map(one.__eq__, column)))
    return [number for number in numbers if column[number] in wanted]


def _known(value: float) -> float | None:
    return value if value == value else None
