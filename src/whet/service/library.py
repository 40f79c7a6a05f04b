"""The service's runs for the dashboard: rows of the database, with the rights of the user that looks."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Select, Text, and_, cast, func, or_, select
from sqlalchemy.orm import Session

from whet.dashboard.data.files import read_object as metadata_of
from whet.dashboard.errors import DashboardError, no_such
from whet.dashboard.library import LibraryRun, RunList, RunQuery, What
from whet.errors import ConfigError
from whet.hub.storage.database import Database, database_now
from whet.parsing import as_number, parse_toml
from whet.records.directory import METADATA, METRICS
from whet.records.sources import run_directories
from whet.records.tail import last_row
from whet.service.deployments.folder import DeploymentFolder, source_of, take
from whet.service.domain.access import RequestUser
from whet.service.domain.deployments import WITH_WEIGHTS
from whet.service.domain.fairness import Amount, RunnerCapacity
from whet.service.domain.queue import line, waiting_runs
from whet.service.domain.runners import places
from whet.service.domain.runs import ENDED, trials_of
from whet.service.domain.usage import IN_PROGRESS
from whet.service.runner.folders import RunFolder, read_object
from whet.service.storage.tables import AttemptRow, RunRow
from whet.service.training_api_runs import current_models, find_model, list_models
from whet.system import untrusted

RECENTLY_S = 30.0
WAITS_S = 1.0
"""How old places in line may be."""


class ServiceLibrary:
    """The runs of a service. A viewer is a `domain.access.Viewer`."""

    def __init__(self, database: Database, data: Path, refreshed: Callable[[RequestUser], RequestUser | None]) -> None:
        """`refreshed` is a viewer with its rights of now; None where its token has ended."""
        self._database, self._data, self._refreshed = database, data, refreshed
        self._lock = threading.Lock()
        self._waits: tuple[float, Mapping[str, QueueWait]] = (float("-inf"), {})

    def runs(self, viewer: RequestUser, query: RunQuery) -> RunList:
        owners, before = list(viewer.roles), None
        chosen = _filtered(select(RunRow).where(RunRow.owner.in_(owners)), query)
        if query.cursor:
            at, _, last = query.cursor.partition("_")
            try:
                before = float.fromhex(at), last[:40]
            except (ValueError, OverflowError):
                raise DashboardError("invalid", "cursor: it is none of this list. Begin again without it.") from None
            older = and_(RunRow.submitted_at == before[0], RunRow.id < before[1])
            chosen = chosen.where(or_(RunRow.submitted_at < before[0], older))
        chosen = chosen.order_by(RunRow.submitted_at.desc(), RunRow.id.desc()).limit(query.limit + 1)
        with self._database.read() as session:
            rows = {row.id: row for row in session.scalars(chosen)}
            models = {one.id: one for one in list_models(session, self._data, owners, query, before)}
            times = {id: row.submitted_at for id, row in rows.items()}
            times |= {id: one.submitted_at or 0.0 for id, one in models.items()}
            shown = sorted(times, key=lambda id: (times[id], id), reverse=True)[: query.limit]
            items = [models[id] if id in models else self._view(session, rows[id], viewer) for id in shown]
        more = len(times) > query.limit
        return RunList(items, f"{times[shown[-1]].hex().replace('+', '')}_{shown[-1]}" if more else None)

    def run(self, viewer: RequestUser, id: str) -> LibraryRun:
        now = self._refreshed(viewer)
        if now is None:
            raise DashboardError("unauthenticated", "the token of this page has ended. Log in again.")
        with self._database.read() as session:
            row = session.get(RunRow, id)
            model = find_model(session, self._data, id) if row is None else None
            if model is not None and now.sees(model.owner):
                return model
            if row is None or row.deleted_at is not None or not now.sees(row.owner):
                raise no_such(f"run {id}")
            return self._view(session, row, now, attempts=True)

    def current(self) -> Sequence[LibraryRun]:
        with self._database.read() as session:
            recent = RunRow.ended_at > database_now(session) - RECENTLY_S
            query = select(RunRow).where(or_(RunRow.state.not_in(ENDED), recent), RunRow.deleted_at.is_(None))
            runs = [self._view(session, row, None) for row in session.scalars(query)]
            return runs + current_models(session, self._data, RECENTLY_S)

    def look(self, id: str) -> LibraryRun | None:
        with self._database.read() as session:
            row = session.get(RunRow, id)
            if row is None:
                return find_model(session, self._data, id)
            return None if row.deleted_at is not None else self._view(session, row, None)

    def sees(self, viewer: RequestUser, run: LibraryRun) -> bool:
        return viewer.sees(run.owner)

    def make(self, run: LibraryRun, step: int, what: What) -> AbstractContextManager[Path]:
        with self._database.read() as session:
            row = session.get_one(RunRow, run.id)
        return exported(self._data, row.id, row.model, row.config, step, what)

    def view(self, session: Session, row: RunRow, viewer: RequestUser) -> dict[str, Any]:
        """A run as the API answers it after a change, in the session of that change."""
        return self._view(session, row, viewer, attempts=True).view()

    def _view(self, session: Session, row: RunRow, viewer: RequestUser | None, attempts: bool = False) -> LibraryRun:
        wait = self._wait(session, row) if row.state == "queued" else None
        directory = run_directory(self._data, row)
        details: dict[str, Any] = {
            **{name: getattr(row, name) for name in ("priority", "attempt", "cost", "tokens", "needs", "caps")},
            "seconds": round(row.seconds, 3),
            "place": wait.place if wait is not None else None,
            "stopping": row.stop_requested_at is not None,
            "pinned": list(row.environments),
            "may": may(row, viewer) if viewer is not None else [],
        }
        if attempts:
            query = select(AttemptRow).where(AttemptRow.run_id == row.id).order_by(AttemptRow.number)
            details["attempts"] = [attempt_view(one) for one in session.scalars(query)]
        attempt = session.get(AttemptRow, (row.id, row.attempt)) if row.state in IN_PROGRESS else None
        reward, details["failed"] = _scores(directory, row.kind)
        reasons = [one for one in (row.reason, wait.reason if wait is not None else "") if one]
        return LibraryRun(
            id=row.id,
            name=row.name,
            kind=row.kind,  # type: ignore[arg-type] # checked when it was submitted
            state=row.state,  # type: ignore[arg-type]
            directory=directory,
            config_file=self._file(row, "submission/config.toml"),
            output_file=self._file(row, f"attempts/{row.attempt}/output.log"),
            owner=row.owner,
            user=row.user,
            model=row.model,
            base="" if untrusted.exists(RunFolder.of(self._data, row.id).submission, row.model) else row.model,
            makes=_makes(row),
            environments=tuple(row.labels),
            reason="; ".join(reasons),
            step=row.step,
            max_steps=row.max_steps,
            reward=reward,
            submitted_at=row.submitted_at,
            started_at=row.started_at,
            ended_at=row.ended_at,
            updated_at=row.ended_at or row.started_at or row.queued_at,
            details=details,
            process=_process(attempt),
            devices=self._devices(row) if attempt is not None and (row.needs or {}).get("devices") else (),
        )

    def _devices(self, row: RunRow) -> tuple[str, ...]:
        """The GPUs that the runner gave to the newest attempt."""
        given = read_object(RunFolder.of(self._data, row.id).attempt(row.attempt).identity).get("devices")
        return tuple(map(str, given)) if isinstance(given, list) else ()

    def _file(self, row: RunRow, name: str) -> Path | None:
        folder = RunFolder.of(self._data, row.id).path
        return folder / name if untrusted.is_file(folder, name) else None

    def _wait(self, session: Session, row: RunRow) -> QueueWait:
        """What a queued run waits for; for a list, and for many viewers, it is found once a second."""
        with self._lock:
            at, known = self._waits
            if time.monotonic() - at > WAITS_S or row.id not in known:
                known = waits(session, database_now(session))
                self._waits = (time.monotonic(), known)
        return known.get(row.id) or QueueWait(None, "")


def _process(attempt: AttemptRow | None) -> tuple[int, str] | None:
    """The shim's process, of which the run's is a descendant; of another machine's nothing is found here."""
    if attempt is None or attempt.pid is None or attempt.process_began is None:
        return None
    return attempt.pid, attempt.process_began


def run_directory(data: Path, row: RunRow) -> Path | None:
    """Where the data of a run is; None before there is any. Of an evaluation the folder of its results."""
    path = RunFolder.of(data, row.id).run
    if not untrusted.is_folder(path.parent, path.name):
        return None
    if row.kind == "evaluation":
        return next((directory for directory, _ in run_directories(path)), None)
    return path


def _makes(row: RunRow) -> tuple[What, ...]:
    """What can be made of a checkpoint: a whole model, and of a run that trained one, its adapter."""
    if row.kind not in WITH_WEIGHTS:
        return ()
    return ("adapter", "model") if _has_adapter(row.config) else ("model",)


@lru_cache(maxsize=1024)
def _has_adapter(config: str) -> bool:
    try:
        return "lora" in parse_toml(config)
    except ValueError:
        return False


def may(row: RunRow, viewer: RequestUser) -> list[str]:
    """What a viewer may do with a run in its state."""
    if not viewer.may_change(row.owner, row.user):
        return []
    if row.state in IN_PROGRESS:
        return ["stop"] if row.stop_requested_at is None else []
    if row.state == "queued":
        return ["stop", "delete"]
    return ["restart", "delete"]


def attempt_view(row: AttemptRow) -> dict[str, Any]:
    names = ("number", "state", "host", "outcome", "exit_code", "started_at", "ended_at")
    return {**{name: getattr(row, name) for name in names}, "runner": row.runner_id}


def _filtered(query: Select[Any], wanted: RunQuery) -> Select[Any]:
    query = query.where(RunRow.deleted_at.is_(None))
    if wanted.kind is not None:
        query = query.where(RunRow.kind == wanted.kind)
    if wanted.state is not None:
        query = query.where(RunRow.state == wanted.state)
    if wanted.owner is not None:
        query = query.where(RunRow.owner == wanted.owner)
    for word in wanted.search.lower().split()[:8]:
        like = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        columns = (RunRow.name, RunRow.model, RunRow.owner, cast(RunRow.labels, Text))
        matches = [func.lower(column).like(like, escape="\\") for column in columns]
        query = query.where(or_(*matches, RunRow.id == word))
    return query


def _scores(directory: Path | None, kind: str) -> tuple[float | None, float | None]:
    """The newest mean reward, as far as the run has written it; of an evaluation also the share that failed."""
    if directory is None:
        return None, None
    try:
        if kind == "evaluation":
            metadata = metadata_of(directory, METADATA)
            return as_number(metadata.get("avg_reward")), as_number(metadata.get("avg_error"))
        return as_number(last_row(directory, METRICS).get("reward/mean")), None
    except (OSError, DashboardError, ValueError, AttributeError):
        return None, None


# Weights of any checkpoint of a run, made for one download as a deployment's are.
#
#     DATA/deployments/{random}/      goes once it is sent; one that a kill left, as it has no row, goes with the
# orphans
#
# The process that exports holds the whole model for a moment, so there is one at a time.

WAIT_S = 60.0
"""How long a download waits for the one before it to be exported."""
_exporting = threading.Lock()


@contextmanager
def exported(data: Path, run: str, model: str, config: str, step: int, what: What) -> Iterator[Path]:
    """The directory of the adapter, or of the whole model, of a checkpoint of a run with this model and config.

    Raises `DashboardError`.
    """
    origin = source_of(data, run, model, config, step)
    if isinstance(origin, list) or not origin.checkpoint:
        raise no_such(f"checkpoint of step {step}")
    source = replace(origin, own_base=what == "model")  # with its own base the weights are whole
    try:
        folder = take(data, secrets.token_hex(8), source)
    except FileNotFoundError:
        raise no_such(f"checkpoint of step {step} with weights") from None
    try:
        if not _exporting.acquire(timeout=WAIT_S):
            raise DashboardError("busy", "other weights are being exported. Try again in a minute.")
        try:
            _export(folder, step)
        finally:
            _exporting.release()
        yield folder.weights
    finally:
        folder.remove()


def _export(folder: DeploymentFolder, step: int) -> None:
    from whet.service.deployments.serve import export_apart

    try:
        asyncio.run(export_apart(folder))
    except ConfigError as error:
        raise DashboardError("unreadable", f"step {step} cannot be exported: {error}") from None


# What a queued run waits for, in words, and its place in line.


@dataclass(frozen=True, slots=True)
class QueueWait:
    """Where a queued run stands; without a place it may not start yet."""

    place: int | None
    reason: str


def waits(session: Session, now: float) -> dict[str, QueueWait]:
    """By run, for every run in the queue."""
    rows = waiting_runs(session)
    able, held_back = line(session, now, rows, trials_of(session, rows))
    here = places(session, now)
    answer = {one.run: QueueWait(number, _why(one.needs, here, number)) for number, one in enumerate(able, start=1)}
    return answer | {run: QueueWait(None, reason) for run, reason in held_back.items()}


def _why(needs: Amount, here: list[RunnerCapacity], number: int) -> str:
    if not here:
        return "no runner is alive; start one with: whet service runner"
    if not any(machine.capacity.holds(needs) for machine in here):
        largest = max(here, key=lambda machine: (machine.capacity.devices, machine.capacity.cores))
        return f"no runner is large enough: it needs {largest.capacity.short_of(needs) or 'more than one has together'}"
    if not any(machine.free.holds(needs) for machine in here):
        able = [machine for machine in here if machine.capacity.holds(needs)]
        freest = max(able, key=lambda machine: machine.free.cores)
        return f"number {number} in line; it needs {freest.free.short_of(needs)} that are free"
    return f"number {number} in line"
