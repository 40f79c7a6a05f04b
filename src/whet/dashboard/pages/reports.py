"""Evaluations and searches for prompts: the lists of them, and what their reports show, on a page.

A report is computed from the files alone, by the code that writes `report.html`; no link in a run's directory is
followed. It is kept until the files change, and one of a run that grows is not computed all the time.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fastapi import APIRouter, Request
from jinja2 import UndefinedError
from starlette.responses import Response

from whet.dashboard.call import Call, DashboardCall, RunId, Words
from whet.dashboard.data.files import open_inside
from whet.dashboard.data.stores import results_directory
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun, RunKind, RunQuery
from whet.dashboard.pages.rendering import PageRoute, render, root_of
from whet.display.page.rendering import fragment
from whet.errors import RunError
from whet.records.directory import CANDIDATES, METADATA, REFLECTIONS, RESULTS, SEARCH_CONFIG
from whet.records.tail import FileStamp, file_stamp

router = APIRouter(route_class=PageRoute)
FILES = {
    "evaluation": (METADATA, RESULTS),
    "search": (METADATA, SEARCH_CONFIG, CANDIDATES, REFLECTIONS, "rollouts/results.jsonl"),
}
MOST_BYTES = 512 << 20
"""Bytes of a run's files that a page reads; a larger one has its report by the command."""
KEPT = 16
"""Reports that are kept."""
PATIENCE = 30.0
"""Seconds that a request waits for the report of another one."""
COMMANDS = {
    "evaluation": ("whet eval run", "whet eval run reverse-text -m whet/tiny"),
    "search": ("whet gepa run", "whet gepa run configs/gepa/gsm8k.toml"),
}
TITLES = {
    "evaluation": ("Evaluations", "How well models do in environments, without training."),
    "search": ("Searches for prompts", "Prompts that were changed and kept where they scored better."),
}


@router.get("/evaluations")
def evaluations_page(request: Request, call: Call, search: Words = "", cursor: Words = "") -> Response:
    return _list(request, call, "evaluation", search, cursor)


@router.get("/searches")
def searches_page(request: Request, call: Call, search: Words = "", cursor: Words = "") -> Response:
    return _list(request, call, "search", search, cursor)


def _list(request: Request, call: DashboardCall, kind: RunKind, search: str, cursor: str) -> Response:
    listed = call.data.library.runs(call.viewer, RunQuery(kind=kind, search=search, cursor=cursor or None))
    here = f"{root_of(request)}/{'evaluations' if kind == 'evaluation' else 'searches'}"
    title, about = TITLES[kind]
    made, command = COMMANDS[kind]
    following = request.url.include_query_params(cursor=listed.next).query if listed.next else ""
    return render(
        request,
        "evaluations.html",
        kind=kind,
        title=title,
        about=about,
        here=here,
        search=search,
        runs=listed.items,
        next_page=f"{here}?{following}" if following else "",
        made=made,
        command=command,
    )


@router.get("/runs/{run}/report")
def report_page(request: Request, call: Call, run: RunId) -> Response:
    library_run = call.run(run)
    if library_run.kind not in FILES:
        raise DashboardError(
            "not_found", f"{library_run.name} is neither an evaluation nor a search; see its other pages."
        )
    rollouts = f"{root_of(request)}/runs/{library_run.id}/rollouts"
    links = [
        ("all rollouts", rollouts),
        ("best first", f"{rollouts}?sort=reward&descending=true"),
        ("worst first", f"{rollouts}?sort=reward"),
        ("failed", f"{rollouts}?failed=true"),
        ("longest", f"{rollouts}?sort=output_tokens&descending=true"),
    ]
    body = reports.body(library_run) if library_run.directory is not None else ""
    empty = f"This run is {library_run.state}. Its scores are here once its first rollouts have ended."
    return render(request, "report.html", run=library_run, body=body, links=links, empty=empty)


@dataclass(frozen=True, slots=True)
class _Report:
    stamps: tuple[FileStamp | None, ...]
    body: str
    made_at: float  # by the monotonic clock
    took: float  # seconds


class Reports:
    """The reports that were computed last."""

    def __init__(self, rest: float = 10.0) -> None:
        """`rest`: how many times as long as it took a report is kept, though files have changed."""
        self._rest = rest
        self._kept: OrderedDict[Path, _Report] = OrderedDict()
        self._lock = threading.Lock()

    def body(self, run: LibraryRun) -> str:
        """A run's report as markup; nothing before its first row. Raises `DashboardError`; `RunError` for damage."""
        assert run.directory is not None
        directory = results_directory(run.directory) if run.kind == "evaluation" else run.directory
        stamps = tuple(file_stamp(directory / name) for name in FILES[run.kind])
        if sum(stamp.size for stamp in stamps if stamp is not None) > MOST_BYTES:
            command = "eval" if run.kind == "evaluation" else "gepa"
            raise DashboardError(
                "too_large", f"{run.name} is too large for this page. `whet {command} report` writes it."
            )
        if not self._lock.acquire(timeout=PATIENCE):
            raise DashboardError("busy", "other reports are being computed. Load this page again in a moment.")
        try:
            kept = self._kept.get(directory)
            if kept is None or (kept.stamps != stamps and time.monotonic() > kept.made_at + self._rest * kept.took):
                begun = time.monotonic()
                made = _body(run, directory)
                now = time.monotonic()
                kept = self._kept[directory] = _Report(stamps, made, now, now - begun)
            self._kept.move_to_end(directory)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return kept.body
        finally:
            self._lock.release()


reports = Reports()
DAMAGED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, UndefinedError, ValueError)
"""What reports raise for files that no run of whet has written: a run's own code may write anything into them."""


def _body(run: LibraryRun, directory: Path) -> str:
    with held(directory, FILES[run.kind]) as folder:
        shown = directory if run.trusted else Path(run.name)
        try:
            return _evaluation(folder) if run.kind == "evaluation" else _search(run, folder, shown)
        except RunError as error:
            raise RunError(str(error).replace(str(folder), str(shown))) from None
        except DAMAGED as error:
            raise RunError(
                f"{run.name}: there is no report of it, because its files have values of other kinds than those of a "
                f"run ({type(error).__name__})."
            ) from error


def _evaluation(folder: Path) -> str:
    from whet.evals.report import TEMPLATE, read_report, values

    if not (folder / RESULTS).is_file():
        return ""
    data = read_report(folder)
    return fragment(TEMPLATE, **values(data)) if data.summary.rollouts else ""


def _search(run: LibraryRun, folder: Path, shown: Path) -> str:
    from whet.gepa.records.stored import open_search
    from whet.gepa.report import TEMPLATE, read_report, values

    data = read_report(open_search(folder))
    if not data.search.candidates:
        return ""
    data.search = replace(data.search, directory=shown, state=run.state)
    return fragment(TEMPLATE, **values(data))


@contextmanager
def held(directory: Path, names: Sequence[str]) -> Iterator[Path]:
    """A folder with these files of a directory as they are now, for code that opens them by name.

    The run's own processes may exchange a file for a link meanwhile: what is read is what was opened here.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whet-report-")))
        for name in names:
            try:
                descriptor = stack.enter_context(open_inside(directory, name))
            except FileNotFoundError:
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(f"/dev/fd/{descriptor}")
        yield folder
