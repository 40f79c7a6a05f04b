"""What the URL of a list of rollouts says: its filter, its order, and what is searched for. Pure.

Fields may be empty, since a form without scripts sends all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from whet.dashboard.errors import DashboardError
from whet.records.heads import Filter, Sort, SortColumn

LONGEST = 200
NEWEST_FIRST = Sort(descending=True)
COLUMNS: tuple[SortColumn, ...] = get_args(SortColumn)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("it is true or false")
    return text == "true"


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("it is a number")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError("it is too large")
    return value


FIELDS: dict[str, Callable[[str], Any]] = {
    "environment": str,
    "part": str,
    "step": _whole,
    "failed": _flag,
    "error": str,
    "stop_condition": str,
    "candidate": str,
    "truncated": _flag,
    "reward_from": _number,
    "reward_to": _number,
    "group": _whole,
}
"""Fields of a `Filter` that a URL may have."""
NAMES = {
    "reward_from": "reward from",
    "reward_to": "reward to",
    "stop_condition": "stopped by",
    "group": "one group",
}


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


def read_query(query: Mapping[str, str]) -> ListQuery:
    """Raises `DashboardError` for a value that its field cannot have."""
    given = {name: text[:LONGEST] for name in (*FIELDS, "search") if (text := query.get(name, "").strip())}
    filter: dict[str, Any] = {}
    for name, text in given.items():
        if name == "search":
            continue
        try:
            filter[name] = FIELDS[name](text)
        except ValueError as error:
            raise DashboardError("invalid", f"{name}: {text!r} cannot be read ({error}).") from None
    column = query.get("sort", "") or "file"
    if column not in COLUMNS:
        raise DashboardError("invalid", f"sort: {column[:50]!r} is no column. Choose one of: {', '.join(COLUMNS)}.")
    return ListQuery(
        values=given,
        filter=Filter(**filter),
        search=given.get("search", ""),
        sort=Sort(column, query.get("descending") == "true") if query.get("sort") else NEWEST_FIRST,
        cursor=query.get("cursor", "")[:LONGEST],
    )


def narrowed_by(query: ListQuery) -> list[tuple[str, dict[str, str]]]:
    """(what it lets through, the URL's values without it) for each filter that has no field of its own in the form."""
    found = []
    for name in ("group", "step"):
        if name in query.values:
            rest = {key: value for key, value in query.listed.items() if key != name}
            found.append((NAMES.get(name, f"{name} {query.values[name]}"), rest))
    return found
