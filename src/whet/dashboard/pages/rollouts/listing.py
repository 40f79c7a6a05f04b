"""The list of a run's rollouts: filter, order and search are in the URL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, RunId
from whet.dashboard.data.rollouts import RolloutQuery, facets, rollout_page
from whet.dashboard.data.stores import OpenStore
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, address, render
from whet.dashboard.pages.rollouts.query import Listed, ListQuery, narrowed_by
from whet.dashboard.pages.rollouts.table import column_heads, rollout_columns, run_path
from whet.errors import RunError
from whet.records import rollout_text
from whet.records.entries import answer_of, one_line, question_of
from whet.records.heads import Head

router = APIRouter(route_class=PageRoute)
PAGE = 100
MOST_READ = 8 << 20
"""Bytes of the rollouts of a page that are read for the texts of its rows."""
LONGEST_QUESTION, LONGEST_TEXT = 20_000, 300
FEW_WORDS = 4
"""Common words that are still shown."""
CHOICES = (
    ("environment", "Environment"),
    ("part", "Part"),
    ("stop_condition", "Stopped by"),
    ("error", "Error"),
    ("candidate", "Candidate"),
)
"""Filters whose values are those there are."""
FLAGS = (("failed", "Failed", "failed", "not failed"), ("truncated", "Truncated", "truncated", "not truncated"))
EMPTY = {
    "training": "They are listed while the run trains: one line for each, as soon as its first step is done.",
    "evaluation": "They are listed while the evaluation runs, as soon as the first one has ended.",
    "search": "They are listed while the search runs, as soon as the first candidate has been called.",
    "sft": "A run that imitates conversations makes none.",
}


@router.get("/runs/{run}/rollouts")
def rollouts_page(request: Request, call: Call, run: RunId, query: Listed) -> Response:
    library_run = call.run(run)
    here = f"{run_path(request, library_run)}/rollouts"
    form = {name: query.values.get(name, "") for name in ("search", "reward_from", "reward_to")}
    values: dict[str, Any] = {"run": library_run, "here": here, "form": form, "narrowed": bool(query.values)}
    values["filtered"] = bool(query.values.keys() - {"search"})
    if library_run.directory is None or library_run.kind == "sft":
        return render(request, "rollouts.html", **values, **_nothing(library_run))
    with call.data.stores.use(library_run) as opened:
        listed = rollout_page(
            opened, RolloutQuery(query.filter, query.search, query.sort, limit=PAGE, cursor=query.cursor)
        )
        values |= _choices(opened, query)
        values |= _table(library_run, opened, query, listed, here)
    return render(request, "rollouts.html", **values)


def _nothing(run: LibraryRun) -> dict[str, Any]:
    """What the page shows of a run that has no rollouts and gets none, or has not begun."""
    progress = {"complete": True, "percent": 100, "failure": None}
    return {"choices": [], "kept": [], "rows": [], "progress": progress, "totals": None, "empty": EMPTY[run.kind]}


def _choices(opened: OpenStore, query: ListQuery) -> dict[str, Any]:
    """The fields of the form. A column with one value has no field, unless the URL names one."""
    known = facets(opened)
    fields = []
    for name, label in CHOICES:
        chosen = query.values.get(name, "")
        counts = dict(known.get(name, {}))
        if chosen:
            counts.setdefault(chosen, 0)
        if len(counts) > 1 or chosen:
            options = [(value, f"{_shown(name, value)} ({count:,})") for value, count in counts.items()]
            fields.append({"name": name, "label": label, "chosen": chosen, "options": options})
    for name, label, yes, no in FLAGS:
        chosen = query.values.get(name, "")
        fields.append({"name": name, "label": label, "chosen": chosen, "options": [("true", yes), ("false", no)]})
    kept = [(name, query.values[name]) for name in ("group", "step") if name in query.values]
    return {"choices": fields, "kept": [*kept, *query.order.items()]}


def _shown(column: str, value: str) -> str:
    """A value of a column as a choice: a step by its number."""
    step = value.removeprefix("step_")
    if column == "part":
        return f"step {int(step)}" if step.isdecimal() else value.replace("_", " ")
    return value


def _table(
    run: LibraryRun, opened: OpenStore, query: ListQuery, listed: Mapping[str, Any], here: str
) -> dict[str, Any]:
    """The rows of this page, and what is said about all of them."""
    heads = [Head(**{**item, "group": int(item["group"])}) for item in listed["items"]]
    texts = texts_of(opened, heads)
    columns = rollout_columns(run.kind, opened.store.variety(), heads, texts)
    first = _position(query.cursor)
    rows = []
    for index, head in enumerate(heads):
        link = address(f"{here}/{head.number}", {**query.listed, "at": first + index if query.listed else None})
        rows.append({"link": link, "head": head, "texts": texts.get(head.number, {})})
    progress, searched = listed["progress"], listed["search"]
    return {
        "columns": list(column_heads(columns, here, query.values, query.sort.column, query.sort.descending)),
        "rows": rows,
        "passed": opened.passed,
        "write": rollout_text,
        "totals": listed["totals"],
        "progress": {**progress, "percent": int(100 * progress["bytes_done"] / max(1, progress["bytes_total"]))},
        "note": _searched(searched, progress["rollouts"]),
        "narrowed_by": [(label, address(here, rest)) for label, rest in narrowed_by(query)],
        "first_page": address(here, query.listed) if query.cursor else None,
        "next_page": address(here, {**query.listed, "cursor": listed["next"]}) if listed["next"] else None,
        "again": address(here, query.listed) if searched and not searched["complete"] else None,
        "empty": EMPTY[run.kind],
    }


def texts_of(opened: OpenStore, heads: Sequence[Head]) -> dict[int, dict[str, str]]:
    """What the rollouts of a page were given, answered, and should have; of many bytes, of the first ones alone.

    Of the questions in one environment, the words that all of them begin or end with are left out.
    """
    texts: dict[int, dict[str, str]] = {}
    left = MOST_READ
    by_environment: dict[str, list[int]] = defaultdict(list)
    for head in heads:
        left -= head.size
        if head.problem or left < 0:
            continue
        try:
            row = opened.store.row(head.number)
        except (RunError, OSError):
            continue
        expected, answer = row.get("answer"), answer_of(row)
        texts[head.number] = {
            "question": question_of(row, LONGEST_QUESTION),
            "answer": answer[-LONGEST_TEXT:] if answer else "",
            "expected": "" if expected is None else one_line(str(expected), LONGEST_TEXT),
        }
        by_environment[head.environment].append(head.number)
    for numbers in by_environment.values():
        for number, text in zip(numbers, differing([texts[number]["question"] for number in numbers]), strict=True):
            texts[number]["question"] = text[:LONGEST_TEXT]
    return texts


def differing(texts: Sequence[str]) -> list[str]:
    """Texts without the words that all of them begin or end with, where those are many."""
    words = [text.split(" ") for text in texts]
    if len(set(texts)) < 2:
        return list(texts)
    first = _shared(words)
    last = _shared([one[first:][::-1] for one in words])
    first, last = (count if count >= FEW_WORDS else 0 for count in (first, last))
    return [" ".join(["..."] * bool(first) + one[first : len(one) - last] + ["..."] * bool(last)) for one in words]


def _shared(words: Sequence[Sequence[str]]) -> int:
    """How many words all begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False)))


def _position(cursor: str) -> int:
    """Of the first row of a page in the whole list, which its cursor ends with."""
    last = cursor.rpartition(".")[2]
    return int(last) if last.isdecimal() and len(last) < 18 else 0


def _searched(searched: Mapping[str, Any] | None, rollouts: int) -> str:
    if searched is None or (searched["complete"] and not searched["full"]):
        return ""
    if searched["full"]:
        return f"these are the first {searched['found']:,} that were found; more words find fewer"
    return f"searched {searched['looked']:,} of {rollouts:,} rollouts so far"
