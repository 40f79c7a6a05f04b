"""The drawings of the report: the lineage of the candidates, and scores over calls. Inline SVG.

Positions are computed by pure functions; colours come from the page's style sheet.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whet.display.chart import axis
from whet.display.html import Html, join, tag
from whet.display.svg import coordinate, drawing, grid, plot_of
from whet.display.text import number
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


def lineage_svg(records: Sequence[CandidateRecord], best: CandidateRecord | None) -> Html:
    """The lineage from left to right; the way to the best candidate stands out."""
    nodes = lineage(records)
    if not nodes:
        return join()
    positions = {node.record.number: _position(node) for node in nodes}
    way, known = ancestors(records, best), by_id(records)
    edges, dots = [], []
    for node in nodes:
        one = node.record
        x, y = positions[one.number]
        for parent in (known[id] for id in one.parents if id in known):
            if parent.number in positions and parent.number != one.number:
                edges.append(_edge(positions[parent.number], (x, y), {one.number, parent.number} <= way))
        dots.append(_dot(node, x, y, one.number in way, best is not None and one.number == best.number))
    width = max(x for x, _ in positions.values()) + 2 * MARGIN
    height = max(y for _, y in positions.values()) + RADIUS + MARGIN
    return tag(
        "svg",
        *edges,
        *dots,
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        width=coordinate(width),
        height=coordinate(height),
        class_="tree",
        role="img",
        aria_label="Lineage of the candidates",
    )


def _position(node: Node) -> tuple[float, float]:
    return MARGIN + node.column * ACROSS, MARGIN + node.row * DOWN


def _edge(start: tuple[float, float], end: tuple[float, float], on_way: bool) -> Html:
    (x, y), (to_x, to_y) = start, end
    bend = (x + to_x) / 2
    path = f"M{coordinate(x)},{coordinate(y)}C{coordinate(bend)},{coordinate(y)} {coordinate(bend)},{coordinate(to_y)} "
    return tag("path", d=f"{path}{coordinate(to_x)},{coordinate(to_y)}", class_="edge way" if on_way else "edge")


def _dot(node: Node, x: float, y: float, on_way: bool, best: bool) -> Html:
    record = node.record
    score = number(record.val_mean)
    more = f"; {node.rejected} proposals from it were rejected" if node.rejected else ""
    name = "seed" if record.verdict == "seed" else f"candidate {record.number}"
    below = f"{node.rejected} rejected" if node.rejected else ""
    return tag(
        "g",
        tag("title", f"{name}: {score} on validation{more}"),
        tag(
            "circle",
            cx=coordinate(x),
            cy=coordinate(y),
            r=RADIUS,
            class_=" ".join(["node", *(["way"] if on_way else []), *(["best"] if best else [])]),
        ),
        tag("text", str(record.number), x=coordinate(x), y=coordinate(y), dy="0.35em", class_="inside middle"),
        tag("text", score, x=coordinate(x), y=coordinate(y + RADIUS + 14), class_="score middle"),
        tag("text", below, x=coordinate(x), y=coordinate(y + RADIUS + 27), class_="axis middle") if below else join(),
    )


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


def scores_svg(records: Sequence[CandidateRecord], max_calls: int | None, width: int = 1040, height: int = 260) -> Html:
    """Means on validation over calls spent: a point a candidate, filled where it was accepted, and the best so far."""
    scored = validated(records)
    if not scored:
        return join()
    values = [mean for _, mean in scored]
    shares = all(0 <= value <= 1 for value in values)
    y_axis = axis(min(0.0, *values) if shares else min(values), max(1.0, *values) if shares else max(values), 5)
    last = max(one.calls_after for one in records)
    x_axis = axis(0.0, float(max(last, max_calls or 0, 1)), 8, whole=True)

    plot = plot_of(x_axis, y_axis, width, height)
    parts = grid(plot, "calls")
    steps = best_so_far(records)
    if steps:
        parts.append(_staircase([plot.position(step) for step in steps], plot.position((last, steps[-1][1]))))
    for one, mean in scored:
        x, y = plot.position((one.calls_after, mean))
        name = "seed" if one.verdict == "seed" else f"candidate {one.number} ({one.verdict})"
        title = tag("title", f"{name}: {mean:.3f} after {one.calls_after:,} calls")
        kind = "mark c1" if one.verdict == "rejected" else "dot c0"
        parts.append(tag("circle", title, cx=coordinate(x), cy=coordinate(y), r=4.5, class_=kind))
    return drawing("Means on validation over calls", parts, width, height)


def _staircase(points: Sequence[tuple[float, float]], end: tuple[float, float]) -> Html:
    drawn = f"M{coordinate(points[0][0])},{coordinate(points[0][1])}"
    for x, y in (*points[1:], end):
        drawn += f"H{coordinate(x)}V{coordinate(y)}"
    return tag("path", d=drawn, class_="line c0")
