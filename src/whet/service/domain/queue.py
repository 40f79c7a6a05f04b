"""The queue, from a runner's side: take the next run, say how it is, say how it ended.

Every function is called in a `Database.write()`, with `now` from `database_now` of the same session. A write about a
run names the attempt and the fence that its runner believes in; one that changes no row has lost: another runner
adopted the run, or gave it up, and the caller leaves it alone from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from whet.service.domain.fairness import Amount, Share, Waiting, in_order, next_run, share_of
from whet.service.domain.runners import alive, places
from whet.service.domain.runs import ENDED, Trial, trials_of
from whet.service.domain.usage import IN_PROGRESS, charge, exhausted, over_cap, shares_of
from whet.service.storage.tables import AttemptRow, Quota, RunnerRow, RunRow
from whet.service.webhooks.deliveries import enqueue

LEASE_S = 30.0
"""How long an attempt's lease holds without being renewed; renew it several times in that."""

LOST_MOST = 30
"""A run fails of which the processes of this many attempts were lost: it may be what ends its machine."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a runner believes to hold: an attempt, by the fence of its run."""

    run: str
    attempt: int
    fence: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A run to start now. `run.resume` and `run.resume_step` say whether and where it continues its directory."""

    held: Held
    run: RunRow


@dataclass(frozen=True, slots=True)
class Renewal:
    """The lease holds. `stop`: end the run with a checkpoint, for `reason`."""

    stop: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Unattended:
    """An attempt in progress of another runner, which may be gone."""

    held: Held
    attempt: AttemptRow
    run: RunRow
    runner: RunnerRow
    expired: bool
    """Whether the lease has: then it is unknown how the run is, and no more than that."""


# Taking


def claim(session: Session, runner: str, now: float, lease_s: float = LEASE_S) -> Claim | None:
    """The next run that fits on this runner, now `starting`; None if there is none.

    Fairness between owners and users, capacity and limits are regarded here. A run is claimed once, whatever others do.
    """
    host = session.get(RunnerRow, runner)
    if host is None or host.ended_at is not None:
        return None
    waiting = waiting_runs(session)
    trials = trials_of(session, waiting)
    _refuse_failed(session, trials, now)
    able, _ = line(session, now, waiting, trials)
    chosen = next_run(able, places(session, now), runner, now)
    if chosen is None:
        return None
    row = session.get_one(RunRow, chosen)
    held = Held(row.id, row.attempt + 1, row.fence + 1)
    taken = _change(
        session,
        (RunRow.id == row.id, RunRow.state == "queued", RunRow.fence == row.fence, RunRow.deleted_at.is_(None)),
        state="starting",
        reason="",
        attempt=held.attempt,
        fence=held.fence,
    )
    if not taken:
        return None
    session.add(
        AttemptRow(
            run_id=held.run,
            number=held.attempt,
            fence=held.fence,
            runner_id=runner,
            host=host.host,
            boot_id=host.boot_id,
            state="starting",
            lease_until=now + lease_s,
            started_at=now,
            outcome="",
            charged_until=now,
        )
    )
    session.flush()
    session.refresh(row)
    enqueue(session, "run.starting", row, now)
    return Claim(held, row)


def line(
    session: Session, now: float, waiting: Sequence[Any], trials: Mapping[str, Trial]
) -> tuple[Iterator[Waiting], dict[str, str]]:
    """Of the `waiting_runs` those that may start, in the order in which they will; by run, why the others may not."""
    pairs = {(row.owner, row.user) for row in waiting}
    shares = shares_of(session, {name for pair in pairs for name in pair}, now)
    limits = {row.owner: row.running for row in session.scalars(select(Quota)) if row.running is not None}
    reasons = {pair: exhausted(session, *pair, now) or _full(pair, shares, limits) for pair in pairs}
    able, held_back = [], {}
    for row in waiting:
        trial = trials[row.id]
        if reason := trial.failed or trial.waits or reasons[row.owner, row.user]:
            held_back[row.id] = reason
        else:
            needs = Amount.of(row.needs)
            able.append(Waiting(row.id, row.owner, row.priority, row.queued_at, needs, row.user))
    return in_order(able, shares), held_back


def _full(pair: tuple[str, str], shares: Mapping[str, Share], limits: Mapping[str, int]) -> str:
    """Which of an owner and a user has as many runs in progress as it may, in words; empty if none."""
    for name in pair:
        if name in limits and share_of(shares, name).running >= limits[name]:
            return f"{name} has {limits[name]} runs in progress, its limit"
    return ""


def _refuse_failed(session: Session, trials: Mapping[str, Trial], now: float) -> None:
    """A run in the queue fails if the hub's action of its environment did, after it was submitted."""
    for run, trial in trials.items():
        if trial.failed:
            row = session.get_one(RunRow, run)
            row.state, row.reason, row.ended_at = "failed", trial.failed, now
            enqueue(session, "run.failed", row, now)


def waiting_runs(session: Session) -> Sequence[Any]:
    """The queued runs: the columns that decide which is next."""
    columns = (
        RunRow.id,
        RunRow.owner,
        RunRow.user,
        RunRow.priority,
        RunRow.queued_at,
        RunRow.needs,
        RunRow.environments,
        RunRow.skip_action_check,
    )
    query = select(*columns).where(RunRow.state == "queued", RunRow.deleted_at.is_(None))
    return session.execute(query.order_by(RunRow.queued_at, RunRow.id)).all()


# Holding


def started(session: Session, held: Held, now: float, *, pid: int, process_began: str | None) -> bool:
    """The shim's process runs: the run is `running`."""
    row = _held(session, held, ("starting",))
    if row is None:
        return False
    row.state, row.pid, row.process_began = "running", pid, process_began
    run = session.get_one(RunRow, held.run)
    run.state = "running"
    run.started_at = run.started_at if run.started_at is not None else now
    enqueue(session, "run.running", run, now)
    return True


def renew(
    session: Session,
    held: Held,
    now: float,
    *,
    step: int | None = None,
    max_steps: int | None = None,
    tokens: int | None = None,
    lease_s: float = LEASE_S,
) -> Renewal | None:
    """Extend the lease, charge the use so far, and learn whether the run has to stop. None: the fence has changed.

    Args:
        step: the last whole step; tokens: of all attempts so far.
    """
    row = _held(session, held, IN_PROGRESS)
    if row is None:
        return None
    row.lease_until = now + lease_s
    run = session.get_one(RunRow, held.run)
    charge(session, run, row, now, tokens)
    run.step = run.step if step is None else step
    run.max_steps = run.max_steps if max_steps is None else max_steps
    if run.stop_requested_at is None:
        why = over_cap(run) or exhausted(session, run.owner, run.user, now)
        run.stop_requested_at, run.reason = (now, f"stopped: {why}") if why else (None, "")
    return Renewal(run.stop_requested_at is not None, run.reason)


def finish(
    session: Session,
    held: Held,
    state: str,
    reason: str,
    now: float,
    *,
    exit_code: int | None = None,
    step: int | None = None,
    tokens: int | None = None,
    ended_at: float | None = None,
) -> bool:
    """The attempt ended: the run is `finished`, `failed` or `stopped`. A run stopped by a cap keeps that reason.

    Args:
        ended_at: when its process ended, if that is known; nothing after it is charged.
    """
    assert state in ENDED
    row = _held(session, held, IN_PROGRESS)
    if row is None:
        return False
    run = session.get_one(RunRow, held.run)
    charge(session, run, row, now if ended_at is None else min(now, ended_at), tokens)
    row.state, row.outcome, row.exit_code, row.ended_at = "ended", state, exit_code, now
    run.state, run.ended_at = state, now
    run.step = run.step if step is None else step
    run.reason = run.reason if state == "stopped" and run.reason else reason
    run.stop_requested_at = None
    enqueue(session, f"run.{state}", run, now)
    return True


def lost(session: Session, held: Held, reason: str, now: float) -> bool:
    """There is evidence that the attempt's processes are gone without an end: the run is queued again and resumes.

    Only for a caller that has that evidence (docs/design/service.md); an expired lease is none.
    """
    row = _held(session, held, IN_PROGRESS)
    if row is None:
        return False
    run = session.get_one(RunRow, held.run)
    charge(session, run, row, min(now, row.lease_until))
    row.state, row.outcome, row.ended_at = "lost", reason, now
    if run.stop_requested_at is not None:
        run.state, run.ended_at, run.stop_requested_at = "stopped", now, None
        run.reason = run.reason or reason
    elif _lost_attempts(session, run) >= LOST_MOST:
        run.state, run.ended_at, run.reason = "failed", now, f"{reason}, as {LOST_MOST - 1} times before"
    else:
        run.state, run.reason = "queued", f"queued again: {reason}"
        run.resume, run.resume_step = True, None
    enqueue(session, f"run.{run.state}", run, now)
    return True


def say(session: Session, held: Held, reason: str) -> bool:
    """A note on a run in progress, such as "unknown since ..."."""
    fenced = (RunRow.id == held.run, RunRow.fence == held.fence, RunRow.state.in_(IN_PROGRESS))
    return _change(session, fenced, reason=reason)


def stops_requested(session: Session, runs: Iterable[str]) -> set[str]:
    """Those of these runs that are to stop."""
    query = select(RunRow.id).where(RunRow.id.in_(list(runs)), RunRow.stop_requested_at.is_not(None))
    return set(session.scalars(query))


# What another runner left


def unattended(session: Session, runner: str, now: float) -> list[Unattended]:
    """Attempts in progress that `runner` does not hold, and whose runner has left, is silent, or lets leases expire."""
    living = {row.id for row in alive(session, now)}
    query = select(AttemptRow, RunRow, RunnerRow).join(RunRow, RunRow.id == AttemptRow.run_id)
    query = query.join(RunnerRow, RunnerRow.id == AttemptRow.runner_id)
    query = query.where(AttemptRow.state.in_(IN_PROGRESS), AttemptRow.runner_id != runner)
    return [
        Unattended(Held(run.id, row.number, row.fence), row, run, other, row.lease_until <= now)
        for row, run, other in session.execute(query.order_by(AttemptRow.started_at))
        if other.id not in living or row.lease_until <= now or other.host == session.get_one(RunnerRow, runner).host
    ]


def adopt(session: Session, held: Held, runner: str, now: float, lease_s: float = LEASE_S) -> Held | None:
    """Take an attempt over from a runner that is gone, with the next fence; None where it was too late.

    The caller has seen that the other runner's process is gone, or that the lease has expired.
    """
    row = _held(session, held, IN_PROGRESS)
    if row is None:
        return None
    run = session.get_one(RunRow, held.run)
    run.fence = row.fence = held.fence + 1
    row.runner_id, row.lease_until = runner, now + lease_s
    return Held(held.run, held.attempt, row.fence)


def _held(session: Session, held: Held, states: Sequence[str]) -> AttemptRow | None:
    """The attempt, if `held` is still true of it and of its run.

    The update is what decides: it changes a row only if the fence is still the run's.
    """
    fenced = (RunRow.id == held.run, RunRow.fence == held.fence, RunRow.attempt == held.attempt)
    if not _change(session, (*fenced, RunRow.state.in_(states)), fence=held.fence):
        return None
    row = session.get_one(AttemptRow, (held.run, held.attempt))
    return row if row.fence == held.fence and row.state in states else None


def _change(session: Session, conditions: Sequence[ColumnElement[bool]], **values: Any) -> bool:
    change = update(RunRow).where(*conditions).values(**values).execution_options(synchronize_session=False)
    return bool(session.execute(change).rowcount)  # type: ignore[attr-defined]


def _lost_attempts(session: Session, run: RunRow) -> int:
    """Those that had a process: a runner that is killed while it prepares a run says nothing about the run."""
    query = select(func.count()).select_from(AttemptRow).where(AttemptRow.run_id == run.id, AttemptRow.state == "lost")
    return int(session.scalar(query.where(AttemptRow.pid.is_not(None))) or 0)
