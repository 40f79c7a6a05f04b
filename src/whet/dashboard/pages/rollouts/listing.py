"""The list of a run's rollouts: filter, order and search are in the URL."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from whet.dashboard.call import ByFilter, Call, Flag, RunId, Words, filter_of
from whet.dashboard.data.rollouts import RolloutQuery, facets, rollout_page
from whet.dashboard.data.stores import OpenStore, source_of
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, address, render, run_path
from whet.errors import RunError
from whet.records import rollout_text
from whet.records.entries import answer_of, one_line, question_of
from whet.records.heads import Filter, Head, Sort, SortColumn, Variety
from whet.records.listing import LARGEST_FIRST, SORTED_BY, shown_columns

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
CELL_CLASSES = {
    "#": "num",
    "step": "num",
    "sampling": "minor",
    "environment": "short words",
    "candidate": "",
    "task": "num",
    "reward": "num",
    "advantage": "num",
    "question": "words",
    "answer": "words short",
    "expected": "words short",
    "ended": "",
    "turns": "num minor",
    "tokens": "num minor",
    "time": "num minor",
}
"""The columns of the page, and the classes of their cells, which `rollouts.html` writes."""
EMPTY = {
    "training": "They are listed while the run trains: one line for each, as soon as its first step is done.",
    "evaluation": "They are listed while the evaluation runs, as soon as the first one has ended.",
    "search": "They are listed while the search runs, as soon as the first candidate has been called.",
    "sft": "A run that imitates conversations makes none.",
}
NEWEST_FIRST = Sort(descending=True)
FIELDS = (*inspect.signature(filter_of).parameters, "search")
"""What in a URL narrows a list."""


Texts = Mapping[int, Mapping[str, str]]
"""Of a rollout by its number: `question`, `answer` and `expected`, each on one line."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A list of rollouts, as its URL names it."""

    values: Mapping[str, str]
    """What narrows or searches, as in the URL; nothing that is empty."""
    filter: Filter = Filter()  # noqa: RUF009 # frozen
    search: str = ""
    sort: Sort = NEWEST_FIRST
    cursor: str = ""

    @property
    def order(self) -> dict[str, str]:
        """The order in a URL; nothing for the newest first."""
        if self.sort == NEWEST_FIRST:
            return {}
        return {"sort": self.sort.column, "descending": "true" if self.sort.descending else ""}

    @property
    def listed(self) -> dict[str, str]:
        """All that says which list it is, without a position in it."""
        return {**self.values, **self.order}


def list_query(
    request: Request,
    by: ByFilter,
    search: Words = "",
    sort: Literal[SortColumn, ""] = "",
    descending: Flag = None,
    cursor: Words = "",
) -> ListQuery:
    """The query of a page with a list, or of one of its rollouts."""
    return ListQuery(
        values={name: text for name in FIELDS if (text := request.query_params.get(name, "").strip())},
        filter=by,
        search=search.strip(),
        sort=Sort(sort, bool(descending)) if sort else NEWEST_FIRST,
        cursor=cursor,
    )


Listed = Annotated[ListQuery, Depends(list_query)]


def narrowed_by(query: ListQuery) -> list[tuple[str, dict[str, str]]]:
    """(what it lets through, the URL's values without it) for each filter that has no field of its own in the form."""
    narrowed = []
    for name in ("group", "step"):
        if name in query.values:
            rest = {key: value for key, value in query.listed.items() if key != name}
            narrowed.append(("one group" if name == "group" else f"step {query.values[name]}", rest))
    return narrowed


@router.get("/runs/{run}/rollouts")
def rollouts_page(request: Request, call: Call, run: RunId, query: Listed) -> Response:
    library_run = call.run(run)
    here = f"{run_path(request, library_run)}/rollouts"
    form = {name: query.values.get(name, "") for name in ("search", "reward_from", "reward_to")}
    values: dict[str, Any] = {"run": library_run, "here": here, "form": form, "narrowed": bool(query.values)}
    values["filtered"] = bool(query.values.keys() - {"search"})
    try:
        source_of(library_run)
    except DashboardError:  # it has none, yet or ever
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
    table: dict[str, Any] = {"rows": [], "progress": progress, "totals": None, "again": None, "empty": EMPTY[run.kind]}
    return {"choices": [], "kept": [], **table}


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
    titles = _columns(run.kind, opened.store.variety(), heads, texts)
    first = _position(query.cursor)
    rows = []
    for index, head in enumerate(heads):
        link = address(f"{here}/{head.number}", {**query.listed, "at": first + index if query.listed else None})
        rows.append({"link": link, "head": head, "texts": texts.get(head.number, {})})
    progress, searched = listed["progress"], listed["search"]
    return {
        "columns": list(_column_heads(titles, here, query)),
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


def _columns(kind: str, variety: Variety, heads: Sequence[Head], texts: Texts) -> list[str]:
    """The titles for an evaluation, a run or a search; columns that would say nothing are left out."""
    shown = set(shown_columns(kind, variety))
    for title, cells in {
        "sampling": (head.sampling for head in heads),
        "time": (head.duration for head in heads),
    }.items():
        if not any(cells):
            shown.discard(title)
    shown |= {title for title in ("answer", "expected") if any(one[title] for one in texts.values())}
    return [title for title in CELL_CLASSES if title in shown]


def _column_heads(titles: Sequence[str], here: str, query: ListQuery) -> Iterator[dict[str, str]]:
    """What the head of each column shows; its `link` sorts by it."""
    for title in titles:
        column = SORTED_BY.get(title)
        chosen = column is not None and column == query.sort.column
        link = order = ""
        if column is not None:
            downwards = not query.sort.descending if chosen else column in LARGEST_FIRST
            link = address(here, {**query.values, "sort": column, "descending": "true" if downwards else ""})
        if chosen:
            order = "descending" if query.sort.descending else "ascending"
        yield {"title": title, "kind": CELL_CLASSES[title], "link": link, "sorted": order}
