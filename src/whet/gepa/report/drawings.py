"""What the report draws: the lineage of the candidates, and scores over calls. Pure; `drawings.html` draws them."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whet.display.chart import Plot, axis
from whet.gepa.records.candidates import by_id
from whet.gepa.types import CandidateRecord

ACROSS, DOWN, RADIUS, MARGIN = 120, 74, 15, 34


@dataclass(frozen=True, slots=True)
class Node:
    """A candidate of the lineage and where it is drawn: `column` generations after the seed."""

    record: CandidateRecord
    column: int
    row: float
    rejected: int  # proposals that were made from it and rejected


def lineage(records: Sequence[CandidateRecord]) -> list[Node]:
    """The seed and what was accepted, each between its children; those whose parents are unknown begin a tree."""
    pool = [one for one in records if one.verdict != "rejected"]
    first: dict[str, CandidateRecord] = {}
    for one in pool:
        first.setdefault(one.id, one)
    children: dict[int, list[CandidateRecord]] = {one.number: [] for one in pool}
    columns: dict[int, int] = {}
    waiting = []
    for one in pool:
        parent = next((first[id] for id in one.parents if id in first and first[id].number < one.number), None)
        if parent is None:
            columns[one.number] = 0
            waiting.append(one)
        else:
            children[parent.number].append(one)
    order: list[CandidateRecord] = []
    waiting.reverse()
    while waiting:  # no recursion: a lineage may be as long as a search
        one = waiting.pop()
        order.append(one)
        for child in reversed(children[one.number]):
            columns[child.number] = columns[one.number] + 1
            waiting.append(child)
    rows: dict[int, float] = {}
    free = itertools.count()
    for one in order:
        if not children[one.number]:
            rows[one.number] = next(free)
    for one in reversed(order):
        if below := children[one.number]:
            rows[one.number] = (rows[below[0].number] + rows[below[-1].number]) / 2
    rejected = Counter(parent for one in records if one.verdict == "rejected" for parent in one.parents)
    return [Node(one, columns[one.number], rows[one.number], rejected[one.id]) for one in order]


def ancestors(records: Sequence[CandidateRecord], last: CandidateRecord | None) -> set[int]:
    """The numbers of a candidate and of those it came from, first parents."""
    known, found = by_id(records), set[int]()
    while last is not None and last.number not in found:
        found.add(last.number)
        last = known.get(last.parents[0]) if last.parents else None
    return found


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
    found = []
    for one in records:
        mean = statistics.fmean(one.val_rewards.values()) if whole and len(one.val_rewards) == whole else one.val_mean
        if mean is not None:
            found.append((one, mean))
    return found


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
