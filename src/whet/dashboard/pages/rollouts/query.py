"""What the URL of a list of rollouts says: its filter, its order, and what is searched for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request

from whet.dashboard.call import ByFilter, Flag, Words, filter_of
from whet.records.heads import Filter, Sort, SortColumn

NEWEST_FIRST = Sort(descending=True)
FIELDS = (*inspect.signature(filter_of).parameters, "search")
"""What in a URL narrows a list."""
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
            narrowed.append((NAMES.get(name, f"{name} {query.values[name]}"), rest))
    return narrowed
