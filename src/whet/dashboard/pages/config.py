"""The config of a run: what differs from the defaults, and all of it, without secrets."""

from __future__ import annotations

import json
from typing import Any

import tomli_w
from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, RunId
from whet.dashboard.data.facts import changed_settings, config_of
from whet.dashboard.data.files import read_object
from whet.dashboard.data.stores import results_directory
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, render
from whet.records.directory import METADATA
from whet.system.redaction import redacted

router = APIRouter(route_class=PageRoute)


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
