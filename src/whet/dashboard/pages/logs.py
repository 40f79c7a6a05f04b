"""The log of a run: its last lines, or those that fit a search, a level and a time; followed while it is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, RunId, Words
from whet.dashboard.data.files import log_lines
from whet.dashboard.errors import DashboardError
from whet.dashboard.pages.rendering import PageRoute, address, render, root_of
from whet.records.log import LogQuery

router = APIRouter(route_class=PageRoute)
LINES = 1_000
LEVELS = (
    ("", "any"),
    ("INFO", "info and above"),
    ("WARNING", "warnings and above"),
    ("ERROR", "errors"),
)


@router.get("/runs/{run}/logs")
def logs_page(
    request: Request,
    call: Call,
    run: RunId,
    search: Words = "",
    level: Literal["", "INFO", "WARNING", "ERROR"] = "",
    since: Words = "",
    cursor: Words = "",
) -> Response:
    library_run = call.run(run)
    moment = _moment(since)
    form = {"search": search, "level": level, "since": since}
    listed = log_lines(library_run, LogQuery(cursor, LINES, not cursor, search, level, moment))
    lines = listed["lines"]
    here = f"{root_of(request)}/runs/{library_run.id}/logs"
    data = f"{root_of(request)}{call.site.data}/runs/{library_run.id}/logs"
    since_text = "" if moment is None else f"{moment:.0f}"
    more = {**form, "since": since_text, "cursor": listed["next"], "limit": str(LINES)}
    follows = not library_run.ended and not listed["more"]
    return render(
        request,
        "logs.html",
        run=library_run,
        here=here,
        form=form,
        levels=LEVELS,
        narrowed=any(form.values()),
        lines=lines,
        shown_text=f"{'The last ' if not cursor else ''}{len(lines):,} {'line' if len(lines) == 1 else 'lines'}",
        follow=address(data, more) if follows else "",
        earlier=address(here, {**form, "cursor": "0.0"}) if not cursor and len(lines) == LINES else "",
        next_page=address(here, {**form, "cursor": listed["next"]}) if listed["more"] else "",
        empty=f"This run is {library_run.state}. What it writes is here from its first line on.",
    )


def _moment(since: str) -> float | None:
    """Seconds since 1970 of what a field for a time sends; in UTC unless it says otherwise."""
    if not since:
        return None
    try:
        moment = datetime.fromisoformat(since)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise DashboardError("invalid", f"since: {since!r} is no time. Write it as 2026-11-23T14:05.") from None
