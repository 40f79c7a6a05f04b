"""The data of a report, read from the run directory in one pass over its rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.gepa.records.candidates import Frontier, frontier
from whet.gepa.records.stored import StoredSearch
from whet.gepa.reflection.log import ReflectionReply
from whet.gepa.reflection.reflection import most_chars, why_unusable
from whet.parsing import as_number
from whet.records.directory import REFLECTIONS, RESULTS
from whet.records.entries import question_of
from whet.system.files import read_lines

QUESTION = 160
"""Characters of an example's question that are kept."""
ANSWER = 300
"""Characters of an unusable answer that are shown."""
KINDS = 20
"""Kinds of errors that are counted separately."""


@dataclass(slots=True)
class ModelUsage:
    """What some calls of a model took."""

    calls: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    cost: float | None = None  # dollars; None where no price is known

    def add(self, usage: Any, names: tuple[str, str]) -> None:
        """`names` are those that tokens in and tokens out have in `usage`."""
        self.calls += 1
        known = usage if isinstance(usage, Mapping) else {}
        self.input_tokens += as_number(known.get(names[0])) or 0.0
        self.output_tokens += as_number(known.get(names[1])) or 0.0
        if (cost := as_number(known.get("cost"))) is not None:
            self.cost = (self.cost or 0.0) + cost


@dataclass(frozen=True, slots=True)
class UnusableReply:
    """An answer of the reflection model that no text could be taken from."""

    component: str
    candidate: int | None  # the number of the one that was to be changed
    why: str
    answer: str  # its beginning


@dataclass(slots=True)
class SearchReportData:
    """A search, as read from its directory."""

    search: StoredSearch
    frontier: list[Frontier]
    questions: dict[str, str] = field(default_factory=dict)  # by example key
    rollouts: ModelUsage = field(default_factory=ModelUsage)
    reflection: ModelUsage = field(default_factory=ModelUsage)
    errors: Counter[str] = field(default_factory=Counter)  # rollouts that failed, by kind
    unusable: list[UnusableReply] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.search.directory


def read_report(search: StoredSearch) -> SearchReportData:
    """Everything the page shows. Raises `RunError` for a line of a file that is damaged."""
    data = SearchReportData(search, frontier(search.candidates))
    _read_rollouts(search.directory / "rollouts" / RESULTS, data)
    _read_reflections(search.directory / REFLECTIONS, data)
    return data


def _read_rollouts(path: Path, data: SearchReportData) -> None:
    if not path.is_file():
        return
    for row in read_lines(path):
        data.rollouts.add(row.get("token_usage"), ("input_tokens", "output_tokens"))
        example = row.get("example")
        if isinstance(example, str) and example not in data.questions:
            data.questions[example] = question_of(row, QUESTION)
        error = row.get("error")
        if error is not None:
            kind = str(error.get("error") if isinstance(error, Mapping) else error)
            data.errors[kind if kind in data.errors or len(data.errors) < KINDS else "others"] += 1


def _read_reflections(path: Path, data: SearchReportData) -> None:
    if not path.is_file():
        return
    limits = data.search.config.get("gepa")
    max_chars = limits.get("max_chars") if isinstance(limits, Mapping) else None
    max_chars = max_chars if isinstance(max_chars, Mapping) else {}
    known = data.search.by_id
    for row in read_lines(path):
        reply = _reply(row.get("reply"))
        data.reflection.add(reply.usage, ("prompt_tokens", "completion_tokens"))
        component, parent = str(row.get("component") or "?"), known.get(str(row.get("candidate")))
        if reply.failure == "too long":
            continue  # the request was sent again with less of the rollouts
        current = parent.texts.get(component, "") if parent is not None else ""
        why = why_unusable(reply, component, current, most_chars(max_chars, component))
        if why is not None:
            number = parent.number if parent is not None else None
            data.unusable.append(UnusableReply(component, number, why, (reply.answer or reply.said)[:ANSWER]))


def _reply(value: Any) -> ReflectionReply:
    """The reply of a line, where fields may be missing or of the wrong type."""
    saved = value if isinstance(value, Mapping) else {}
    texts = {name: saved.get(name) for name in ("answer", "failure", "finish_reason")}
    known: dict[str, Any] = {name: text if isinstance(text, str) else None for name, text in texts.items()}
    usage = saved.get("usage")
    return ReflectionReply(
        **known, said=str(saved.get("said") or ""), usage=usage if isinstance(usage, Mapping) else None
    )
