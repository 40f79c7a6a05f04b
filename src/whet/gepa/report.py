"""`report.html`: a search on one page, in one file, made from its directory alone.

The data is read in one pass over the rollouts; from it follow the values of `search.html`, drawings included.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.display.chart import Plot, axis
from whet.display.page.rendering import document
from whet.gepa.records.candidates import Frontier, by_id, frontier
from whet.gepa.records.stored import BEST_PROMPT, StoredSearch, confirmation_words, headline, open_search, tested
from whet.gepa.reflection.log import ReflectionReply
from whet.gepa.reflection.reflection import most_chars, why_unusable
from whet.gepa.text_diff import differences
from whet.gepa.types import CandidateRecord
from whet.parsing import as_number
from whet.records.directory import MOST_ROWS, REFLECTIONS, RESULTS, write_page
from whet.records.entries import question_of
from whet.system.files import read_lines

TEMPLATE = "search.html"
MOST_CANDIDATES = 200
"""Candidates that are shown with what they changed, of those accepted and of those rejected."""
MOST_LINES = 400
"""Lines of a difference that are shown."""
LONGEST_LINE = 4000
TONES = {"good": "ok", "unsure": "warning", "bad": "error"}
QUESTION = 160
"""Characters of an example's question that are kept."""
ANSWER = 300
"""Characters of an unusable answer that are shown."""
KINDS = 20
"""Kinds of errors that are counted separately."""
ACROSS, DOWN, RADIUS, MARGIN = 120, 74, 15, 34


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


def write_report(directory: Path) -> Path:
    """Write `report.html` into the directory of a search and return its path.

    A search that has not ended is reported as far as it came; however many its calls, the page is a few megabytes.
    Raises `RunError` where there is no search, and for a file of it that is damaged.
    """
    search = open_search(directory)
    return write_page(search.directory, document(TEMPLATE, search.title, values(read_report(search))))


def values(data: SearchReportData) -> dict[str, Any]:
    """What the template needs."""
    search = data.search
    verdict, meaning, sureness = headline(search)
    best, seed = search.best, search.seed
    by_verdict = {one: [c for c in search.candidates if c.verdict == one] for one in ("accepted", "rejected")}
    return {
        "data": data,
        "search": search,
        "best": best,
        "seed": seed,
        "verdict": verdict,
        "meaning": meaning,
        "confirmation": list(confirmation_words(search)),
        "tone": TONES[sureness],
        "prompt_file": data.directory / BEST_PROMPT,
        "tree": tree(search.candidates, best),
        "scores": scores(search.candidates, search.max_calls, 1040, 260),
        "candidates": by_verdict,
        "most_candidates": MOST_CANDIDATES,
        "frontier": sorted(data.frontier, key=lambda line: line.reward)[:MOST_ROWS],
        "compared": [] if seed is None or best is None else [seed] if best is seed else [seed, best],
        "settings": json.dumps(dict(search.status), indent=2),
        "parents_of": lambda one: [search.by_id[id] for id in one.parents if id in search.by_id],
        "difference": _difference,
        "tested": tested,
    }


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What differs, by component: lines with their pieces, which say whether they are marked; the first of many."""
    return {
        name: [
            *({"kind": line.kind, "pieces": list(_at_most(line.pieces))} for line in lines[:MOST_LINES]),
            *(
                [{"kind": "hidden", "pieces": [(f"{len(lines) - MOST_LINES:,} more lines …", False)]}]
                if len(lines) > MOST_LINES
                else []
            ),
        ]
        for name, lines in differences(before, after).items()
    }


def _at_most(pieces: tuple[tuple[str, bool], ...]) -> Iterator[tuple[str, bool]]:
    """The pieces of a line to its longest length; one piece alone is not marked, the whole line is."""
    left = LONGEST_LINE
    for text, changed in pieces:
        hidden = len(text) - left
        yield f"{text[:left]}… ({hidden:,} more characters)" if hidden > 0 else text, changed and len(pieces) > 1
        left -= len(text)
        if left < 0:
            return


@dataclass(frozen=True, slots=True)
class Node:
    """A candidate of the lineage and where it is drawn: `column` generations after the seed."""

    record: CandidateRecord
    column: int
    row: int
    rejected: int  # proposals that were made from it and rejected


def lineage(records: Sequence[CandidateRecord]) -> list[Node]:
    """The seed and what was accepted, each beside its first child; those whose parents are unknown begin a tree."""
    pool = [one for one in records if one.verdict != "rejected"]
    first: dict[str, CandidateRecord] = {}
    for one in pool:
        first.setdefault(one.id, one)
    children: dict[int | None, list[CandidateRecord]] = defaultdict(list)
    for one in pool:
        parent = next((first[id] for id in one.parents if id in first and first[id].number < one.number), None)
        children[None if parent is None else parent.number].append(one)
    rejected = Counter(parent for one in records if one.verdict == "rejected" for parent in one.parents)
    nodes, row = [], 0
    waiting = [(one, 0) for one in reversed(children[None])]
    while waiting:  # no recursion: a lineage may be as long as a search
        one, column = waiting.pop()
        nodes.append(Node(one, column, row, rejected[one.id]))
        row += not children[one.number]
        waiting += [(child, column + 1) for child in reversed(children[one.number])]
    return nodes


def ancestors(records: Sequence[CandidateRecord], last: CandidateRecord | None) -> set[int]:
    """The numbers of a candidate and of those it came from, first parents."""
    known, numbers = by_id(records), set[int]()
    while last is not None and last.number not in numbers:
        numbers.add(last.number)
        last = known.get(last.parents[0]) if last.parents else None
    return numbers


def tree(records: Sequence[CandidateRecord], best: CandidateRecord | None) -> dict[str, Any] | None:
    """The lineage from left to right, with the way to the best candidate; None without candidates."""
    way, known = ancestors(records, best), by_id(records)
    nodes: dict[int, dict[str, Any]] = {
        node.record.number: {
            "record": node.record,
            "name": _name(node.record),
            "x": MARGIN + node.column * ACROSS,
            "y": MARGIN + node.row * DOWN,
            "rejected": node.rejected,
            "on_way": node.record.number in way,
            "best": best is not None and node.record.number == best.number,
        }
        for node in lineage(records)
    }
    if not nodes:
        return None
    edges = [
        {"start": nodes[parent.number], "end": node, "on_way": {number, parent.number} <= way}
        for number, node in nodes.items()
        for parent in (known[id] for id in node["record"].parents if id in known)
        if parent.number in nodes and parent.number != number
    ]
    width, height = (max(node[way] for node in nodes.values()) for way in ("x", "y"))
    return {
        "nodes": list(nodes.values()),
        "edges": edges,
        "width": width + 2 * MARGIN,
        "height": height + RADIUS + MARGIN,
    }


def _name(record: CandidateRecord) -> str:
    return "seed" if record.verdict == "seed" else f"candidate {record.number}"


def validated(records: Sequence[CandidateRecord]) -> list[tuple[CandidateRecord, float]]:
    """Every candidate that was called on all validation examples, with its mean there; also those that lost."""
    whole = max((len(one.val_rewards) for one in records), default=0)
    points = []
    for one in records:
        mean = statistics.fmean(one.val_rewards.values()) if whole and len(one.val_rewards) == whole else one.val_mean
        if mean is not None:
            points.append((one, mean))
    return points


def best_so_far(records: Sequence[CandidateRecord]) -> list[tuple[int, float]]:
    """(calls, the best mean on validation from then on), a step for each time that it rose."""
    steps: list[tuple[int, float]] = []
    for record in sorted(records, key=lambda one: (one.calls_after, one.number)):
        if record.verdict == "rejected" or record.val_mean is None:
            continue
        if not steps or record.val_mean > steps[-1][1]:
            steps.append((record.calls_after, record.val_mean))
    return steps


def scores(records: Sequence[CandidateRecord], max_calls: int | None, width: int, height: int) -> dict[str, Any] | None:
    """Means on validation over calls, and the best so far to the last call; None before the first."""
    scored = validated(records)
    if not scored:
        return None
    values = [mean for _, mean in scored]
    shares = all(0 <= value <= 1 for value in values)
    y_axis = axis(min(0.0, *values) if shares else min(values), max(1.0, *values) if shares else max(values), 5)
    last = max(one.calls_after for one in records)
    x_axis = axis(0.0, float(max(last, max_calls or 0, 1)), 8, whole=True)
    steps = best_so_far(records)
    return {
        "plot": Plot(x_axis, y_axis, 46, 10, width - 56, height - 40),
        "width": width,
        "height": height,
        "best": [*steps, (last, steps[-1][1])] if steps else [],
        "points": [
            {"name": _name(one), "verdict": one.verdict, "mean": mean, "calls": one.calls_after} for one, mean in scored
        ],
    }
