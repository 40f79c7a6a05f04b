"""Rollouts of a run: a page of the list, one rollout, its group, groups and histograms of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from whet.dashboard.data.files import LONGEST_ANSWER, Cutter
from whet.dashboard.data.stores import OpenStore
from whet.dashboard.errors import DashboardError
from whet.records.heads import EVERY_ROLLOUT, CountColumn, Filter, Head, IndexProgress, Sort
from whet.records.rollout_text import details
from whet.records.statistics import HistogramColumn

CHANGED = "the list changed; begin again."
FACETS: tuple[CountColumn, ...] = ("environment", "error", "stop_condition", "candidate", "sampling", "part")
MOST_VALUES = 200
MOST_OF_A_GROUP = 64
INTERVALS = 30
HISTOGRAMS: tuple[HistogramColumn, ...] = ("reward", "advantage", "output_tokens", "turns", "duration")


def head_view(head: Head) -> dict[str, Any]:
    """A head in JSON; the key of its group is text, because it has more digits than a script's numbers."""
    return {**asdict(head), "group": str(head.group)}


def progress_view(progress: IndexProgress) -> dict[str, Any]:
    """How much of the files is listed."""
    names = ("rollouts", "damaged", "bytes_done", "bytes_total", "complete", "failure")
    return {name: getattr(progress, name) for name in names}


def check_generation(opened: OpenStore, progress: IndexProgress, generation: str | None) -> str:
    """The generation now. Raises `DashboardError` where numbers of `generation` are void."""
    now = opened.generation(progress)
    if generation not in (None, "", now):
        raise DashboardError("conflict", CHANGED)
    return now


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Which page of which list."""

    filter: Filter = EVERY_ROLLOUT
    search: str = ""
    sort: Sort = Sort()  # noqa: RUF009 # frozen
    limit: int = 50
    cursor: str = ""


def rollout_page(opened: OpenStore, query: RolloutQuery) -> dict[str, Any]:
    """A page of the list. Its cursor holds on to what was listed at the first page: what came later is not in it.

    A search continues with each request, until `search.complete`.
    """
    progress = opened.progress()
    generation = opened.generation(progress)
    below, start = progress.rollouts, 0
    if query.cursor:
        of, below, start = _read_cursor(query.cursor)
        check_generation(opened, progress, of)
    filter, searched = query.filter, None
    if query.search:
        matches = opened.search(query.search)
        filter = replace(filter, numbers=frozenset(matches.numbers))
        searched = {
            "found": len(matches.numbers),
            "looked": matches.looked,
            "complete": matches.full or (progress.complete and matches.looked >= progress.rollouts),
            "full": matches.full,
        }
    listed = replace(filter, below=below) if query.cursor else filter
    numbers = opened.store.page(listed, query.sort, start, query.limit + 1)
    more = len(numbers) > query.limit
    totals = None if query.cursor else _kept(opened, ("totals", filter), lambda: asdict(opened.store.totals(filter)))
    return {
        "generation": generation,
        "items": [head_view(opened.store.head(number)) for number in numbers[: query.limit]],
        "next": f"{generation}.{below}.{start + query.limit}" if more else None,
        "totals": totals,
        "passed": opened.passed,
        "search": searched,
        "progress": progress_view(progress),
    }


def _read_cursor(cursor: str) -> tuple[str, int, int]:
    try:
        generation, below, start = cursor.split(".")
        read = generation, int(below), int(start)
    except ValueError:
        raise DashboardError("invalid", "cursor: it is none of this list. Begin again without it.") from None
    if not (0 <= read[1] < 2**62 and 0 <= read[2] < 2**62):
        raise DashboardError("invalid", "cursor: it is none of this list. Begin again without it.")
    return read


def _kept(opened: OpenStore, key: Any, count: Any) -> Any:
    with opened.lock:
        if key in opened.counted:
            return opened.counted[key]
    value = count()
    with opened.lock:
        if len(opened.counted) < 100:
            opened.counted[key] = value
    return value


def facets(opened: OpenStore) -> dict[str, dict[str, int]]:
    """The values to filter by, with their numbers of rollouts; at most 200 of each column."""
    opened.progress()
    return {
        column: dict(list(_kept(opened, column, lambda c=column: opened.store.counts(c)).items())[:MOST_VALUES])
        for column in FACETS
    }


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """One rollout, its texts cut."""

    generation: str
    head: Head
    row: dict[str, Any]
    """As in the file, without turns."""
    turns: Any
    group: Sequence[int]
    passed: float
    cut: bool

    def view(self) -> dict[str, Any]:
        """In JSON, without tokens."""
        row = self.row
        return {
            "generation": self.generation,
            "head": head_view(self.head),
            "prompt": row.get("prompt"),
            "completion": row.get("completion"),
            "scores": {name: row.get(name) for name in ("reward", "advantage", "metrics")},
            "answer": row.get("answer"),
            "info": row.get("info"),
            "error": row.get("error"),
            "facts": details(row, self.head, self.passed),
            "group": list(self.group),
            "cut": self.cut,
        }


def read_rollout(
    opened: OpenStore, number: int, generation: str | None = None, cutter: Cutter | None = None
) -> ShownRollout:
    """One rollout. Raises `DashboardError` where its number is void, and `RunError` for a line that is no rollout."""
    progress = opened.progress()
    now = check_generation(opened, progress, generation)
    if not 0 <= number < progress.rollouts:
        if not progress.complete and 0 <= number < 2**40:
            raise DashboardError("busy", f"rollout {number} is not listed yet: the run's files are being read.")
        raise DashboardError("not_found", f"there is no rollout {number} in this run.")
    row: Mapping[str, Any] = opened.store.row(number)
    turns = row.get("turns")
    cutter = cutter or Cutter()
    shown = cutter.value({key: value for key, value in row.items() if key != "turns"})
    cut = cutter.cut or "left_out_bytes" in row
    group = opened.store.group(number)[:1000]
    return ShownRollout(now, opened.store.head(number), shown, turns, group, opened.passed, cut)


def read_group(opened: OpenStore, number: int, generation: str | None = None) -> list[ShownRollout]:
    """The rollouts of the group that a rollout belongs to, at most 64; together they are as long as one may be."""
    first = read_rollout(opened, number, generation)
    numbers = list(first.group[:MOST_OF_A_GROUP])
    if number not in numbers:
        numbers[-1:] = [number]
    shown = []
    for one in numbers:
        cutter = Cutter(2 * LONGEST_ANSWER // len(numbers))
        shown.append(read_rollout(opened, one, first.generation, cutter))
    return shown


def groups(opened: OpenStore, filter: Filter, start: int, count: int) -> dict[str, Any]:
    """A page of the groups of rollouts that fit."""
    progress = opened.progress()
    listed = opened.store.groups(filter, start, count + 1)
    return {
        "generation": opened.generation(progress),
        "items": [{**asdict(one), "group": str(one.group)} for one in listed[:count]],
        "next": str(start + count) if len(listed) > count else None,
        "progress": progress_view(progress),
    }


def distributions(opened: OpenStore, filter: Filter) -> dict[str, Any]:
    """Histograms by environment: of rewards, advantages, lengths, turns and seconds."""
    progress = opened.progress()
    histograms = {}
    for column in HISTOGRAMS:
        histogram = _kept(opened, (column, filter), lambda c=column: opened.store.histogram(c, filter, INTERVALS))
        if histogram is not None:
            width = (histogram.high - histogram.low) / INTERVALS
            edges = [histogram.low + width * index for index in range(INTERVALS)] + [histogram.high]
            histograms[column] = {"edges": edges, "counts": histogram.counts, "means": histogram.means}
    return {
        "generation": opened.generation(progress),
        "step": filter.step,
        "totals": _kept(opened, ("totals", filter), lambda: asdict(opened.store.totals(filter))),
        "histograms": histograms,
        "progress": progress_view(progress),
    }


def newest_step(opened: OpenStore) -> int | None:
    """The newest step with trained rollouts; None where rollouts belong to no step."""
    opened.progress()
    parts = _kept(opened, "part", lambda: opened.store.counts("part"))
    steps = [int(part.removeprefix("step_")) for part in parts if part.startswith("step_") and part[5:].isdigit()]
    return max(steps, default=None)
