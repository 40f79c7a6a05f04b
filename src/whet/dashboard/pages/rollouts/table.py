"""The table of rollouts: which columns there are, and a row's cells. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import Request

from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import root_of
from whet.records.heads import Head, SortColumn, Variety
from whet.records.rollout_text import number, part_name, reward_style, seconds, signed, signed_style

DOWNWARDS_FIRST = ("reward", "advantage", "input_tokens", "output_tokens", "turns", "duration", "size")
"""Columns that the first click sorts downwards."""


@dataclass(frozen=True, slots=True)
class RolloutCell:
    """A cell; `bar` is the length of a bar from 0 to 1, None for none."""

    text: str
    kind: str
    bar: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutColumn:
    """A column: its title, how a click on it sorts, and what it shows of a rollout."""

    title: str
    kind: str  # classes of its cells
    sort: SortColumn | None
    show: Callable[[Head, float], tuple[str, str]]  # (text, class), by the head and the reward that counts as passed


Texts = Mapping[int, Mapping[str, str]]
"""Of a rollout by its number: `question`, `answer` and `expected`, each on one line."""


def rollout_columns(kind: str, variety: Variety, texts: Texts) -> list[RolloutColumn]:
    """The columns for an evaluation, a run or a search; those that would say nothing are left out."""
    trained = kind == "training"

    def text_of(name: str) -> Callable[[Head, float], tuple[str, str]]:
        return lambda head, _: (texts.get(head.number, {}).get(name, ""), "")

    def question(head: Head, _: float) -> tuple[str, str]:
        return head.problem or texts.get(head.number, {}).get("question") or head.question, ""

    columns = [
        RolloutColumn("#", "num", "file", lambda head, _: (f"{head.number + 1:,}", "")),
        RolloutColumn("step", "num", None, lambda head, _: (part_name(head), "")) if trained else None,
        RolloutColumn("sampling", "minor", None, _sampling) if variety.samplings > 1 else None,
        RolloutColumn("environment", "short words", "environment", _environment) if variety.environments > 1 else None,
        RolloutColumn("candidate", "", None, lambda head, _: (head.candidate or "", "")) if kind == "search" else None,
        RolloutColumn("task", "num", "example", _task),
        RolloutColumn("reward", "num", "reward", lambda head, passed: (number(head.reward), _reward(head, passed))),
        RolloutColumn("advantage", "num", "advantage", _advantage) if trained else None,
        RolloutColumn("question", "words", None, question),
        *(
            RolloutColumn(name, "words short", None, text_of(name))
            for name in ("answer", "expected")
            if any(one[name] for one in texts.values())
        ),
        RolloutColumn("ended", "", "stop_condition", _ended),
        RolloutColumn("turns", "num minor", "turns", lambda head, _: ("" if head.problem else str(head.turns), "")),
        RolloutColumn("tokens", "num minor", "output_tokens", _tokens),
        RolloutColumn("time", "num minor", "duration", lambda head, _: (seconds(head.duration), "")),
    ]
    return [column for column in columns if column is not None]


def _sampling(head: Head, passed: float) -> tuple[str, str]:
    return head.sampling or "", ""


def _environment(head: Head, passed: float) -> tuple[str, str]:
    return head.environment, ""


def _task(head: Head, passed: float) -> tuple[str, str]:
    return "" if head.example_id is None else str(head.example_id), ""


def _reward(head: Head, passed: float) -> str:
    return f"is-{reward_style(head.reward, passed)}"


def _advantage(head: Head, passed: float) -> tuple[str, str]:
    style = signed_style(head.advantage)
    return signed(head.advantage), f"is-{style}" if style else ""


def _ended(head: Head, passed: float) -> tuple[str, str]:
    if head.error:
        return head.error, "is-bad"
    return head.stop_condition or "", "is-middling" if head.truncated else "is-dim"


def _tokens(head: Head, passed: float) -> tuple[str, str]:
    return "" if head.output_tokens is None else f"{head.output_tokens:,.0f}", ""


def cells(columns: list[RolloutColumn], head: Head, passed: float) -> Iterator[RolloutCell]:
    """One row."""
    for column in columns:
        text, style = column.show(head, passed)
        bar = head.reward if column.title == "reward" else None
        yield RolloutCell(text, f"{column.kind} {style}".strip(), bar)


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
            downwards = not descending if chosen else column.sort in DOWNWARDS_FIRST
            link = address(here, {**query, "sort": column.sort, "descending": "true" if downwards else ""})
        order = ("descending" if descending else "ascending") if chosen else ""
        yield ColumnHead(column.title, column.kind, link, order)


def run_path(request: Request, run: LibraryRun) -> str:
    """The path that the pages of a run are below."""
    return f"{root_of(request)}/runs/{run.id}"


def address(path: str, query: Mapping[str, Any]) -> str:
    """A URL; what is None or "" is not in it."""
    written = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return f"{path}?{written}" if written else path


@dataclass(frozen=True, slots=True)
class StyledText:
    """A value and how it is marked: good, middling, bad, dim, or ""."""

    text: str
    style: str = ""


def styled_reward(reward: float | None, passed: float) -> StyledText:
    """A reward, marked by whether it passed."""
    return StyledText(number(reward) or "none", reward_style(reward, passed))


def origin(head: Head) -> str:
    """Where in a run a rollout is from."""
    task = "" if head.example_id is None else f"task {head.example_id}"
    part = part_name(head, "step ") if head.part else ""
    candidate = f"candidate {head.candidate}" if head.candidate else ""
    return ", ".join(filter(None, [head.environment, task, part, head.sampling, candidate]))
