"""Which run a RUN means: one of this machine, or one of the service.

One of this machine goes first: a directory, or a name below runs/. Else, where a service is set, RUN is an id (16
hexadecimal digits), `owner/name`, or a name, of which the newest is meant.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from whet.errors import RunError
from whet.records.directory import RUN_CONFIG
from whet.records.stored import RUNS
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from whet.hub.client.connection import HubClient
    from whet.service.answers import SubmittedRun

ID = re.compile(r"[0-9a-f]{16}")


def is_here(run: str) -> bool:
    """Whether a RUN is one of this machine."""
    return any((path / RUN_CONFIG).is_file() for path in (Path(run), RUNS / run))


def is_of_service(run: str) -> bool:
    """Whether a RUN is to be looked for on the service. Nothing is requested of it, and httpx is not imported."""
    if is_here(run):
        return False
    from whet.service.client.connection import service_is_set

    return service_is_set()


def find_run(service: HubClient, run: str) -> SubmittedRun:
    """The run of an id or a name. Raises `RunError` where there is none that this user may see."""
    from whet.hub.client.connection import HubRequestError

    why = ""
    try:
        matching = _asked(service, run)
    except HubRequestError as error:
        if error.code not in (None, "not_found"):
            raise
        matching, why = None, f" ({error})" if error.code is None else " (which is no training service)"
    if matching is not None:
        return matching
    here = sorted(path.parent.name for path in RUNS.glob("*/config.toml"))
    near = difflib.get_close_matches(run, here, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "`whet train list` and `whet train list --service` show the runs."
    raise RunError(
        f"there is no run {safe_text(run)!r}: neither here (a directory, or a name in {RUNS}/) nor on {service.url}"
        f"{why}. {hint}"
    )


def _asked(service: HubClient, run: str) -> SubmittedRun | None:
    from whet.hub.client.connection import HubRequestError, path_of
    from whet.service.answers import SubmittedRun

    if ID.fullmatch(run):
        try:
            return service.ask(SubmittedRun, "GET", f"/runs{path_of(run)}")
        except HubRequestError as error:
            if error.code != "not_found":
                raise
    owner, _, name = run.rpartition("/")
    if not name or run.startswith((".", "/", "~")):
        return None
    newest_first = service.items(SubmittedRun, "/runs", search=name, owner=owner or None)
    return next((one for one in newest_first if one.name == name), None)
