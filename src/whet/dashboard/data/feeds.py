"""What is new in a run, and in the list of runs, as events in the form of server-sent events.

A `RunFeed` reads what was appended to a run's files since it last looked; the `ListFeed` says which runs of a list
changed. Events are bytes, made once and given to every subscriber.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.dashboard.data.files import Cutter, log_lines, read_object
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun, Viewer
from whet.errors import WhetError
from whet.records.directory import EVALS, METRICS, STATUS
from whet.records.log import LOG, LogQuery
from whet.records.tail import FileStamp, Tail, file_stamp, last_row, row_of
from whet.system.files import json_line

if TYPE_CHECKING:
    from whet.dashboard.data.dashboard_data import DashboardData

LIBRARY_SECONDS = 1.0
"""Between two looks at the library."""
MOST_WAITING = 64
"""Batches of events that a slow subscriber may be behind."""
LONGEST_ROW = 64 << 10
LOG_LINES = 200
MOST_MISSED = 4 << 20
"""Bytes of metrics that are sent again; a browser that missed more fetches its curves again."""
STATUS_FIELDS = ("state", "phase", "phase_done", "phase_total", "stalled", "last_note", "last_error")


def event(kind: str, data: Any, id: str = "") -> bytes:
    """One server-sent event."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {kind}\ndata: {json_line(data)}\n".encode()


class Subscriber:
    """One stream to one browser. `batches` ends with None."""

    def __init__(self, viewer: Viewer = None) -> None:
        self.viewer = viewer
        self.batches: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.seen: dict[str, bool] = {}
        """Of a list: which runs its viewer may see."""
        self._loop = asyncio.get_running_loop()
        self.ended = False

    def offer(self, batch: bytes | None) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._put, batch)
        except RuntimeError:  # the loop has ended
            self.ended = True

    def _put(self, batch: bytes | None) -> None:
        if self.ended:
            return
        if batch is None or self.batches.qsize() >= MOST_WAITING:
            self.ended = True
            batch = None
        self.batches.put_nowait(batch)


@dataclass(slots=True)
class RunFeed:
    """A run that at least one subscriber looks at."""

    id: str
    subscribers: set[Subscriber] = field(default_factory=set)
    metrics: Tail = field(default_factory=lambda: Tail(METRICS))
    evaluations: Tail = field(default_factory=lambda: Tail(EVALS))
    log: str = ""  # cursor
    log_stamp: FileStamp | None = None
    status_stamp: FileStamp | None = None
    shown: Any = None  # what the last event `state` said
    run: LibraryRun | None = None
    looked: float = float("-inf")
    examined: float = float("-inf")
    findings: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def position(self) -> str:
        """Id of the last event: what a browser gives back to get what it missed."""
        return f"{self.metrics.generation}:{self.metrics.position}:{self.log}"

    def begin(self, run: LibraryRun) -> None:
        """Take what is there as known."""
        self.run = run
        if run.directory is not None:
            for file in (self.metrics, self.evaluations):
                with suppress(OSError):
                    file.skip(run.directory)
            self.log = log_lines(run, LogQuery(tail=True, limit=1))["next"]
            self.log_stamp = file_stamp(run.directory / "logs" / LOG)
            self.status_stamp = file_stamp(run.directory / STATUS)
        self.shown = _state(run)

    def look(self, data: DashboardData, now: float) -> list[bytes]:
        """What is new since the last look."""
        events: list[bytes] = []
        ended = self.run is None or self.run.ended
        status = file_stamp(self.run.directory / STATUS) if self.run and self.run.directory else None
        if now - self.looked >= LIBRARY_SECONDS or status != self.status_stamp:
            self.looked, self.status_stamp = now, status
            self.run = data.library.look(self.id)
            if self.run is None:
                return [event("end", {"run": self.id, "reason": "the run is no longer there"})]
        run = self.run
        assert run is not None
        if run.directory is not None:
            events += self._files(run, run.directory)
        state = _state(run)
        if state != self.shown:
            self.shown = state
            events.append(event("state", state, self.position))
        if run.ended and ended:  # what was written before its end was read after it
            events.append(event("end", {"run": self.id, "state": run.state}))
        return events

    def _files(self, run: LibraryRun, directory: Path) -> Iterator[bytes]:
        rewritten, lines = _appended(self.metrics, directory)
        if rewritten:
            yield event("reset", {"run": self.id, "generation": self.metrics.generation}, self.position)
        for line, end in lines:
            if (made := step_event(self.id, line)) is not None:
                yield event("step", made, f"{self.metrics.generation}:{end}:{self.log}")
        for line, _ in _appended(self.evaluations, directory)[1]:
            if len(line) <= LONGEST_ROW and (row := row_of(line)):
                kept = ("moment", "step", "environment", "sampling", "reward")
                yield event("evaluation", {"run": self.id, **{name: row.get(name) for name in kept}}, self.position)
        stamp = file_stamp(directory / "logs" / LOG)
        if stamp != self.log_stamp:
            page = log_lines(run, LogQuery(self.log, LOG_LINES))
            self.log = page["next"]
            self.log_stamp = None if page["more"] else stamp
            if page["lines"]:
                yield event("log", {"run": self.id, **page}, self.position)

    def publish(self, events: list[bytes]) -> None:
        if events:
            batch = b"".join(events)
            for subscriber in list(self.subscribers):
                subscriber.offer(batch)


def _appended(tail: Tail, directory: Path) -> tuple[bool, list[tuple[bytes, int]]]:
    """Whether a file is another one now, or was cut, which then counts as read; and the lines appended since."""
    try:
        again, lines, _ = tail.read(directory)
        if again:
            tail.skip(directory)
    except OSError:  # a link, or a file that may not be read
        return False, []
    return again, [] if again else lines


def _state(run: LibraryRun) -> dict[str, Any]:
    """What an event `state` says."""
    status: Mapping[str, Any] = {}
    if run.directory is not None and run.kind in ("training", "sft") and not run.ended:
        try:
            status = read_object(run.directory, STATUS)
        except (WhetError, OSError):
            status = {}
    fields = {name: status[name] for name in STATUS_FIELDS if name in status}
    view = {name: value for name, value in run.view().items() if name != "updated_at"}
    return {"run": run.id, **view, "status": Cutter(20_000, longest=2_000).value(fields)}


def step_event(run: str, line: bytes) -> dict[str, Any] | None:
    """What the event of a row of metrics says; None for a line that is none. Of a very long row, only the step."""
    row = row_of(line) if len(line) <= LONGEST_ROW else {}
    if not isinstance(row.get("step"), int):
        return None
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}
    return {"run": run, "step": row["step"], "metrics": numbers}


@dataclass(slots=True)
class ListFeed:
    """The runs of the library, for all lists."""

    subscribers: set[Subscriber] = field(default_factory=set)
    runs: dict[str, LibraryRun] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)
    stamps: dict[str, FileStamp | None] = field(default_factory=dict)
    looked: float = float("-inf")

    def look(self, data: DashboardData, now: float) -> None:
        """Tell each subscriber which of the runs that it may see changed."""
        if now - self.looked >= LIBRARY_SECONDS:
            self.looked = now
            before = self.runs
            self.runs = {run.id: run for run in data.library.current()}
            for id in before.keys() - self.runs.keys():
                self.shown.pop(id, None)
                self.stamps.pop(id, None)
        for run in self.runs.values():
            said = self._said(run)
            if said != self.shown.get(run.id):
                self.shown[run.id] = said
                self._publish(data, run, event("run", said))

    def _said(self, run: LibraryRun) -> dict[str, Any]:
        names = ("id", "name", "kind", "state", "reason", "step", "max_steps", "reward", "place")
        view = run.view()
        said = {"run": run.id, **{name: view.get(name) for name in names}}
        if run.directory is None or run.kind not in ("training", "sft"):
            return said
        stamp = file_stamp(run.directory / METRICS)
        if stamp == self.stamps.get(run.id) and run.id in self.shown:
            return {**said, "step": self.shown[run.id]["step"], "reward": self.shown[run.id]["reward"]}
        self.stamps[run.id] = stamp
        row = last_row(run.directory, METRICS)
        if isinstance(row.get("step"), int):
            said |= {"step": row["step"], "reward": row.get("reward/mean", said["reward"])}
        return said

    def _publish(self, data: DashboardData, run: LibraryRun, batch: bytes) -> None:
        for subscriber in list(self.subscribers):
            seen = subscriber.seen.get(run.id)
            if seen is None:
                seen = subscriber.seen[run.id] = data.library.sees(subscriber.viewer, run)
            if seen:
                subscriber.offer(batch)


def missed(feed: RunFeed, run: LibraryRun, last_id: str) -> list[bytes]:
    """What was written between the event with this id and where the feed is now; `reset` where that is unknown."""
    generation, _, rest = last_id.partition(":")
    position, _, cursor = rest.partition(":")
    if run.directory is None or not last_id:
        return []
    with feed.lock:
        stop, now, log = feed.metrics.position, feed.metrics.generation, feed.log
    reset = event("reset", {"run": run.id, "generation": now}, f"{now}:{stop}:{log}")
    if generation != now or not position.isdecimal() or len(position) > 15:
        return [reset] if now else []
    start = int(position)
    if not 0 <= start <= stop or stop - start > MOST_MISSED:
        return [reset]
    events: list[bytes] = []
    known = Tail(feed.metrics.name, stop - start, feed.metrics.inode, start)
    for line, end in _appended(known, run.directory)[1] if start < stop else ():
        if (made := step_event(run.id, line)) is not None:
            events.append(event("step", made, f"{generation}:{end}:{cursor}"))
    try:
        page = log_lines(run, LogQuery(cursor, 5 * LOG_LINES)) if cursor and cursor != log else None
    except DashboardError:
        return [reset]
    if page is not None and page["lines"]:
        events.append(event("log", {"run": run.id, **page}, f"{now}:{stop}:{log}"))
    return events
