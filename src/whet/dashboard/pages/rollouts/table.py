"""The table of rollouts: which columns there are, and a row's cells. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import Request

from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import address, root_of
from whet.records.columns import LARGEST_FIRST
from whet.records.heads import Head, SortColumn, Variety


class RolloutColumn(NamedTuple):
    """A column: its title, the classes of its cells, and by what a click on it sorts."""

    title: str
    kind: str = ""
    sort: SortColumn | None = None


COLUMNS = (
    RolloutColumn("#", "num", "file"),
    RolloutColumn("step", "num"),
    RolloutColumn("sampling", "minor"),
    RolloutColumn("environment", "short words", "environment"),
    RolloutColumn("candidate"),
    RolloutColumn("task", "num", "example"),
    RolloutColumn("reward", "num", "reward"),
    RolloutColumn("advantage", "num", "advantage"),
    RolloutColumn("question", "words"),
    RolloutColumn("answer", "words short"),
    RolloutColumn("expected", "words short"),
    RolloutColumn("ended", "", "stop_condition"),
    RolloutColumn("turns", "num minor", "turns"),
    RolloutColumn("tokens", "num minor", "output_tokens"),
    RolloutColumn("time", "num minor", "duration"),
)
"""All columns of a list of rollouts; `rollouts.html` writes their cells."""

Texts = Mapping[int, Mapping[str, str]]
"""Of a rollout by its number: `question`, `answer` and `expected`, each on one line."""


def rollout_columns(kind: str, variety: Variety, heads: Sequence[Head], texts: Texts) -> list[RolloutColumn]:
    """The columns for an evaluation, a run or a search; those that would say nothing are left out."""
    said = {
        "step": kind == "training",
        "sampling": variety.samplings > 1 and any(head.sampling for head in heads),
        "environment": variety.environments > 1,
        "candidate": kind == "search",
        "advantage": kind == "training",
        "answer": any(one["answer"] for one in texts.values()),
        "expected": any(one["expected"] for one in texts.values()),
        "time": any(head.duration for head in heads),
    }
    return [column for column in COLUMNS if said.get(column.title, True)]


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """The head of a column as a page shows it; `link` sorts by it."""

    title: str
    kind: str
    link: str
    sorted: str  # ascending, descending, or ""


def column_heads(
    columns: list[RolloutColumn], here: str, query: Mapping[str, Any], sort: str, descending: bool
) -> Iterator[ColumnHead]:
    """`query`: what is in the URL already, without its order and cursor."""
    for column in columns:
        chosen = column.sort is not None and column.sort == sort
        link = ""
        if column.sort is not None:
            downwards = not descending if chosen else column.sort in LARGEST_FIRST
            link = address(here, {**query, "sort": column.sort, "descending": "true" if downwards else ""})
        order = ("descending" if descending else "ascending") if chosen else ""
        yield ColumnHead(column.title, column.kind, link, order)


def run_path(request: Request, run: LibraryRun) -> str:
    """The path that the pages of a run are below."""
    return f"{root_of(request)}/runs/{run.id}"
