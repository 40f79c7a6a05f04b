"""What a run has written: its log, its checkpoints, and its config without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import tomli_w
from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, RunId, Words
from whet.dashboard.data.checkpoints import checkpoints
from whet.dashboard.data.facts import changed_settings, config_of
from whet.dashboard.data.files import log_lines, read_object
from whet.dashboard.data.stores import results_directory
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, address, render, root_of, run_path
from whet.records.directory import METADATA
from whet.records.log import LogQuery
from whet.system.redaction import redacted

router = APIRouter(route_class=PageRoute)
LINES = 1_000
LEVELS = (
    ("", "any"),
    ("INFO", "info and above"),
    ("WARNING", "warnings and above"),
    ("ERROR", "errors"),
)
DEPLOYMENTS = "/deployments"
"""A site with this page can serve checkpoints."""


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
    here = f"{run_path(request, library_run)}/logs"
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


@router.get("/runs/{run}/checkpoints")
def checkpoints_page(request: Request, call: Call, run: RunId) -> Response:
    library_run = call.run(run)
    root = root_of(request)
    data = f"{root}{call.site.data}/runs/{library_run.id}/checkpoints"
    listed = checkpoints(call.data.checks, library_run) if library_run.directory is not None else []
    deploys = any(item.path == DEPLOYMENTS for item in call.site.nav)
    return render(
        request,
        "checkpoints.html",
        run=library_run,
        checkpoints=[_checkpoint_row(one, library_run, root, data, deploys) for one in reversed(listed)],
        actions=deploys,
        export="" if deploys else str(library_run.directory),
    )


def _checkpoint_row(one: Mapping[str, Any], run: LibraryRun, root: str, data: str, deploys: bool) -> dict[str, Any]:
    """One checkpoint; each action leads to a page that asks first."""
    step, whole = one["step"], one["fault"] is None
    actions = []
    if deploys and one["deployable"]:
        actions.append(("deploy", f"{root}{DEPLOYMENTS}/new?run={run.id}&step={step}"))
    if whole and "restart" in run.details.get("may", ()):
        actions.append(("restart from here", f"{root}/runs/{run.id}/restart?step={step}"))
    downloads = [(what, f"{data}/{step}/archive?what={what}") for what in one["archives"]] if whole else []
    return {**one, "downloads": downloads, "actions": actions}


@router.get("/runs/{run}/config")
def config_page(request: Request, call: Call, run: RunId) -> Response:
    library_run = call.run(run)
    name, text = _settings(library_run)
    changed = changed_settings(library_run) if text else {}
    return render(
        request,
        "config.html",
        run=library_run,
        name=name,
        text=text,
        changed=[(path, json.dumps(value, ensure_ascii=False, default=str)) for path, value in changed.items()],
        trains=library_run.kind in ("training", "sft"),
        empty=f"This run is {library_run.state}. Its config is here once it has begun.",
    )


def _settings(run: LibraryRun) -> tuple[str, str]:
    """What to call the config, and its text; both empty where there is none."""
    if run.config_file is not None:
        return "The whole config", tomli_w.dumps(config_of(run))
    if run.directory is None:
        return "", ""
    folder = results_directory(run.directory) if run.kind == "evaluation" else run.directory
    metadata: dict[str, Any] = read_object(folder, METADATA)
    config = metadata.get("config") or {name: value for name, value in metadata.items() if name != "tasks"}
    return ("Settings", json.dumps(redacted(config), indent=2, ensure_ascii=False, default=str)) if config else ("", "")
