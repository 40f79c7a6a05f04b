"""The list of a run's rollouts: filter, order and search are in the URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, RunId
from whet.dashboard.data.rollouts import RolloutQuery, facets, rollout_page
from whet.dashboard.data.stores import OpenStore
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, render
from whet.dashboard.pages.rollouts.query import ListQuery, narrowed_by, read_query
from whet.dashboard.pages.rollouts.table import address, cells, column_heads, rollout_columns, run_path
from whet.viewer.heads import Head

router = APIRouter(route_class=PageRoute)
PAGE = 100
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
def rollouts_page(request: Request, call: Call, run: RunId) -> Response:
    found = call.run(run)
    query = read_query(request.query_params)
    here = f"{run_path(request, found)}/rollouts"
    asked = {name: query.values.get(name, "") for name in ("search", "reward_from", "reward_to")}
    values: dict[str, Any] = {"run": found, "here": here, "asked": asked, "narrowed": bool(query.values)}
    if found.directory is None or found.kind == "sft":
        return render(request, "rollouts.html", **values, **_nothing(found))
    with call.data.stores.use(found) as opened:
        listed = rollout_page(
            opened, RolloutQuery(query.filter, query.search, query.sort, limit=PAGE, cursor=query.cursor)
        )
        values |= _choices(opened, query)
        values |= _table(found, opened, query, listed, here)
    return render(request, "rollouts.html", **values)


def _nothing(run: LibraryRun) -> dict[str, Any]:
    """What the page shows of a run that has no rollouts and gets none, or has not begun."""
    progress = {"complete": True, "percent": 100, "failure": None}
    return {"choices": [], "kept": [], "rows": [], "progress": progress, "totals": None, "empty": EMPTY[run.kind]}


def _choices(opened: OpenStore, query: ListQuery) -> dict[str, Any]:
    """The fields of the form. A column with one value is not asked for, unless the URL names one."""
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
    columns = rollout_columns(run.kind, opened.store.variety())
    if not any(head.sampling for head in heads):
        columns = [column for column in columns if column.title != "sampling"]
    first = _position(query.cursor)
    rows = []
    for index, head in enumerate(heads):
        link = address(f"{here}/{head.number}", {**query.listed, "at": first + index if query.listed else None})
        rows.append({"link": link, "cells": list(cells(columns, head, opened.passed))})
    progress, searched = listed["progress"], listed["search"]
    return {
        "columns": list(column_heads(columns, here, query.values, query.sort.column, query.sort.descending)),
        "rows": rows,
        "totals": listed["totals"],
        "progress": {**progress, "percent": int(100 * progress["bytes_done"] / max(1, progress["bytes_total"]))},
        "note": _searched(searched, progress["rollouts"]),
        "narrowed_by": [(label, address(here, rest)) for label, rest in narrowed_by(query)],
        "first_page": address(here, query.listed) if query.cursor else None,
        "next_page": address(here, {**query.listed, "cursor": listed["next"]}) if listed["next"] else None,
        "again": address(here, query.listed) if searched and not searched["complete"] else None,
        "empty": EMPTY[run.kind],
    }


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
