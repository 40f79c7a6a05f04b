"""A rollout as the viewer lists it: its head, and how heads are narrowed and ordered. Pure.

A head holds what fits into an index: numbers, names and the first words of the question. The rest of a rollout is read
from its file when somebody looks at it (`store.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    """One rollout in a list. What a row does not say is None; text is as it was written, not made harmless."""

    number: int  # of the rollout in its store, from 0
    part: str = ""  # "" in an evaluation; in a run the file's name: step_000012, eval_before
    line: int = 0  # in its file, from 1
    size: int = 0  # bytes of the line
    environment: str = ""
    example_id: int | str | None = None
    group: int = 0  # equal for all rollouts of a group: a key, not a number for people
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
class Progress:
    """How much of the files is in the index."""

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
class Totals:
    """Over the rollouts of a list."""

    rollouts: int
    mean_reward: float | None  # of those with a reward and without an error
    failed: int
    truncated: int
