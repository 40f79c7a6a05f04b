"""The list of rollouts: what one shows (`Head`), and its filters, orders and totals, as SQL on an index.

A head holds what fits into an index: numbers, names and the first words of the question. The whole rollout is read
from its file when it is shown (`store.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

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
CountColumn = Literal["environment", "error", "stop_condition", "candidate", "sampling", "part"]


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
    step: int | None = None  # of training
    below: int | None = None  # only rollouts with smaller numbers: those that were listed at some time


@dataclass(frozen=True, slots=True)
class Sort:
    """The order of a list. Equal rollouts keep the order of the file; what has no value comes last either way."""

    column: SortColumn = "file"
    descending: bool = False


EVERY_ROLLOUT, FILE_ORDER = Filter(), Sort()


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How much of the files is listed."""

    rollouts: int
    damaged: int  # lines that are no rollouts, listed with their problem
    bytes_done: int
    bytes_total: int
    torn: int  # bytes of unfinished last lines, which are not listed
    generation: int  # grows when the numbers of rollouts given before are void, because a file was replaced or cut
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


@dataclass(frozen=True, slots=True)
class Variety:
    """What there is in all rollouts: a column that would say the same in every row is not shown."""

    environments: int = 1
    errors: int = 0
    samplings: int = 0


# Every statement may use :default, the environment of rows that name none.
FROM = "FROM rollouts JOIN files ON files.id = rollouts.file"
ENVIRONMENT = "coalesce(environment, :default)"
_PLACE = """coalesce(place, (SELECT count(*) FROM rollouts AS other
    WHERE other.group_key = rollouts.group_key AND other.number < rollouts.number))"""
HEAD = f"""SELECT number, part, line, rollouts.size, coalesce({ENVIRONMENT}, ''), example_id, group_key, {_PLACE},
    reward, advantage, error, stop_condition, candidate, sampling, truncated, input_tokens, output_tokens, turns,
    duration, step, question, problem {FROM} WHERE number = :number"""
"""The fields of a `Head`, in their order."""
LINE = f"SELECT part, line, offset, rollouts.size, checksum, problem {FROM} WHERE number = :number"
LINES = "SELECT file, offset, size, problem IS NOT NULL FROM rollouts ORDER BY number"
SOME_LINES = "SELECT file, offset, size, problem IS NOT NULL FROM rollouts WHERE number >= :first ORDER BY number"
_NAMED = "CASE value WHEN '' THEN :default ELSE value END"
VARIETY = f"""SELECT (SELECT count(DISTINCT {_NAMED}) FROM tallies WHERE field = 'environment'),
    (SELECT coalesce(sum(count), 0) FROM tallies WHERE field = 'error'),
    (SELECT count(*) FROM tallies WHERE field = 'sampling')"""
_CONDITIONS = {
    "environment": f"{ENVIRONMENT} = :environment AND problem IS NULL",
    "part": "part = :part",
    "failed": "(error IS NOT NULL OR problem IS NOT NULL) = :failed",
    "error": "error = :error",
    "stop_condition": "stop_condition = :stop_condition",
    "candidate": "candidate = :candidate",
    "truncated": "truncated = :truncated",
    "reward_from": "reward >= :reward_from",
    "reward_to": "reward <= :reward_to",
    "group": "group_key = :group",
    "numbers": "number IN (SELECT value FROM json_each(:numbers))",
    "step": "step = :step",
    "below": "number < :below",
}
_ORDERS = {
    "environment": f"{ENVIRONMENT} COLLATE NOCASE",
    "error": "error COLLATE NOCASE",
    "stop_condition": "stop_condition COLLATE NOCASE",
    "example": "CASE typeof(example_id) WHEN 'integer' THEN example_id END",
    "size": "rollouts.size",
}


def where(filter: Filter) -> tuple[str, dict[str, Any]]:
    """The condition of a filter and its parameters."""
    values = {field.name: getattr(filter, field.name) for field in fields(filter)}
    given = {name: value for name, value in values.items() if value is not None}
    if filter.numbers is not None:
        given["numbers"] = json.dumps(sorted(filter.numbers))
    return " AND ".join(("1", *(_CONDITIONS[name] for name in given))), given


def numbers_query(filter: Filter, sort: Sort, *, several_files: bool) -> tuple[str, dict[str, Any]]:
    """The numbers of the rollouts that fit, in order."""
    condition, given = where(filter)
    # That of `files.order_of`; the lines of a single file are numbered in its order.
    keys = ["step IS NULL", "step", "part GLOB 'eval*'", "part", "number"] if several_files else ["number"]
    direction = "DESC" if sort.descending else "ASC"
    if sort.column == "file":
        keys = [f"{key} {direction}" for key in keys]
    else:
        keys.insert(0, f"{_ORDERS.get(sort.column, sort.column)} {direction} NULLS LAST")
    by_file = several_files or filter.part is not None or filter.step is not None
    tables = FROM if by_file else "FROM rollouts"
    return f"SELECT number {tables} WHERE {condition} ORDER BY {', '.join(keys)}", given


def totals_query(filter: Filter) -> tuple[str, dict[str, Any]]:
    """The fields of `ListTotals`."""
    condition, given = where(filter)
    failed = "error IS NOT NULL OR problem IS NOT NULL"
    return (
        f"SELECT count(*), avg(CASE WHEN error IS NULL THEN reward END), coalesce(sum({failed}), 0), "
        f"coalesce(sum(truncated), 0) {FROM} WHERE {condition}"
    ), given


def counts_query(column: CountColumn) -> str:
    """The values of a column with their numbers of rollouts: most frequent first, parts in order."""
    if column == "part":
        return f"SELECT part, count(*) {FROM} GROUP BY file ORDER BY step IS NULL, step, part GLOB 'eval*', part"
    return (
        f"SELECT {_NAMED} AS name, sum(count) FROM tallies WHERE field = '{column}' AND name IS NOT NULL "
        "GROUP BY name ORDER BY sum(count) DESC, min(first) LIMIT 10000"
    )
