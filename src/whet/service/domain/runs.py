"""Runs from a user's side: submit, stop, restart, delete. Callers have checked who may."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from whet.hub.domain.audit import record
from whet.hub.domain.cipher import Cipher
from whet.hub.errors import HubError
from whet.hub.storage.tables import Account, ActionRow, EnvironmentRow, Version
from whet.service.domain.secrets import add_run_secrets
from whet.service.domain.usage import IN_PROGRESS, exhausted, over_cap
from whet.service.storage.tables import Quota, RunRow, RunSecret
from whet.service.webhooks.deliveries import enqueue

KINDS = ("training", "sft", "evaluation", "search")
ENDED = ("finished", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class NewRun:
    """A submission that passed its checks."""

    key: str
    owner: str
    name: str
    kind: str
    model: str
    config: str
    files: dict[str, str]
    environments: list[str]
    labels: list[str]
    needs: dict[str, Any]
    caps: dict[str, Any]
    max_steps: int | None
    priority: int = 0
    skip_action_check: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)


def submit(session: Session, cipher: Cipher, user: str, wanted: NewRun, now: float) -> tuple[RunRow, bool]:
    """The run of a submission, and whether it is new: the same key of the same user again is the same run.

    Raises `HubError` (over_quota, conflict).
    """
    known = session.scalar(select(RunRow).where(RunRow.user == user, RunRow.key == wanted.key))
    if known is not None:
        if (known.owner, known.config, known.kind) != (wanted.owner, wanted.config, wanted.kind):
            raise HubError("conflict", f"this key was used for another submission: {known.owner}/{known.name}.")
        return known, False
    _within_quota(session, wanted.owner, user, now)
    columns = {column.name: getattr(wanted, column.name) for column in fields(wanted) if column.name != "secrets"}
    row = RunRow(**columns, id=secrets.token_hex(8), user=user, state="queued", submitted_at=now, queued_at=now)
    session.add(row)
    session.flush()
    add_run_secrets(session, cipher, row.id, wanted.secrets)
    detail = {"name": wanted.name, "kind": wanted.kind, "secrets": sorted(wanted.secrets)}
    record(session, user, "run.submit", wanted.owner, row.id, now, detail)
    enqueue(session, "run.queued", row, now)
    return row, True


def _within_quota(session: Session, owner: str, user: str, now: float) -> None:
    """Of the owner, and of the user for whichever owner its runs are."""
    why = exhausted(session, owner, user, now)
    for name in dict.fromkeys((owner, user)):
        quota = session.get(Quota, name)
        if not why and quota is not None and quota.queued is not None:
            waiting = select(func.count()).select_from(RunRow).where(or_(RunRow.owner == name, RunRow.user == name))
            waiting = waiting.where(RunRow.state == "queued", RunRow.deleted_at.is_(None))
            if int(session.scalar(waiting) or 0) >= quota.queued:
                why = f"{name} has {quota.queued} runs in the queue, as many as it may"
    if why:
        raise HubError("over_quota", f"{why}. An administrator of the hub can raise it.")


def request_stop(session: Session, row: RunRow, user: str, now: float) -> None:
    """Stop a run: one in the queue at once, one in progress with a checkpoint. Raises `HubError` (wrong_state)."""
    if row.state in IN_PROGRESS:
        if row.stop_requested_at is None:
            row.stop_requested_at, row.reason = now, f"stopped by {user}"
    elif row.state == "queued":
        row.state, row.ended_at, row.reason = "stopped", now, f"stopped by {user} before it began"
        enqueue(session, "run.stopped", row, now)
    else:
        raise HubError("wrong_state", f"run {row.id} is {row.state}: there is nothing to stop.")
    record(session, user, "run.stop", row.owner, row.id, now)


def restart(
    session: Session,
    row: RunRow,
    user: str,
    step: int | None,
    now: float,
    *,
    there: Collection[int] | None = None,
    caps: Mapping[str, Any] | None = None,
) -> None:
    """Queue a run that ended again, from a checkpoint (None: the newest).

    Args:
        there: the steps of which it has checkpoints; None where that is not known.
        caps: those that take the place of the run's.

    Raises `HubError` (wrong_state, not_found, over_quota).
    """
    if row.state not in ENDED:
        raise HubError("wrong_state", f"run {row.id} is {row.state}. Stop it first, then restart it.")
    if step is not None and row.attempt == 0:
        raise HubError("wrong_state", f"run {row.id} never began: it has no checkpoint of step {step}.")
    if step is not None and there is not None and step not in there:
        known = ", ".join(map(str, sorted(there))) or "none"
        raise HubError("not_found", f"run {row.id} has no checkpoint of step {step}; there are: {known}.")
    row.caps = {**row.caps, **(caps or {})}
    if why := over_cap(row):
        raise HubError("over_quota", f"run {row.id} would be stopped at once: {why}. Give a higher one.")
    _within_quota(session, row.owner, row.user, now)
    row.state, row.reason, row.queued_at, row.ended_at = "queued", "", now, None
    row.resume, row.resume_step, row.stop_requested_at = row.attempt > 0, step, None
    record(session, user, "run.restart", row.owner, row.id, now, {"step": step, **(caps or {})})
    enqueue(session, "run.queued", row, now)


def delete_run(session: Session, row: RunRow, user: str, now: float) -> None:
    """A tombstone; its secrets go. Its folder is the caller's. Raises `HubError` (wrong_state)."""
    deleted = (
        update(RunRow)
        .where(RunRow.id == row.id, RunRow.state.not_in(IN_PROGRESS), RunRow.deleted_at.is_(None))
        .values(deleted_at=now, config="", files={}, reason="")
    )
    if not session.execute(deleted).rowcount:  # type: ignore[attr-defined]
        raise HubError("wrong_state", f"run {row.id} is {row.state}. Stop it first: whet train stop {row.id}")
    session.execute(delete(RunSecret).where(RunSecret.run_id == row.id))
    record(session, user, "run.delete", row.owner, row.id, now, {"name": row.name})


# The hub's actions of the environments that queued runs name: a run waits for them, and is refused if one failed.


@dataclass(frozen=True, slots=True)
class Trial:
    """What the actions of a run's environments say: `waits` for one that is queued or runs, or one `failed`."""

    waits: str = ""
    failed: str = ""


CLEAR = Trial()
SKIPPED = "--skip-action-check"


def split_reference(reference: str) -> tuple[str, str, str]:
    """Owner, name and version of `owner/name@version`; empty where a part is absent."""
    env_id, _, version = reference.partition("@")
    owner, _, name = env_id.partition("/")
    return owner, name, version


def action_states(session: Session, references: Iterable[str]) -> dict[str, str]:
    """The state of the newest action of each `owner/name@version`; absent for a version without an action."""
    wanted = {reference: split_reference(reference) for reference in set(references)}
    if not wanted:
        return {}
    newest = (
        select(ActionRow.version_id, func.max(ActionRow.queued_at).label("at"))
        .group_by(ActionRow.version_id)
        .subquery()
    )
    query = (
        select(Account.name, EnvironmentRow.name, Version.version, ActionRow.state)
        .select_from(ActionRow)
        .join(newest, (newest.c.version_id == ActionRow.version_id) & (newest.c.at == ActionRow.queued_at))
        .join(Version, Version.id == ActionRow.version_id)
        .join(EnvironmentRow, EnvironmentRow.id == Version.environment_id)
        .join(Account, Account.id == EnvironmentRow.owner_id)
        .where(Version.version.in_({version for _, _, version in wanted.values()}))
    )
    states = {(owner, name, version): state for owner, name, version, state in session.execute(query)}
    return {reference: states[parts] for reference, parts in wanted.items() if parts in states}


def trials_of(session: Session, waiting: Iterable[Any]) -> dict[str, Trial]:
    """By run id; `waiting` are rows with `id`, `environments` and `skip_action_check`."""
    rows = list(waiting)
    states = action_states(session, (env for row in rows if not row.skip_action_check for env in row.environments))
    answer = {}
    for row in rows:
        environments = () if row.skip_action_check else row.environments
        busy = [env for env in environments if states.get(env) in ("queued", "running")]
        failed = [env for env in environments if states.get(env) == "failed"]
        if failed:
            answer[row.id] = Trial(failed=f"the hub's action of {failed[0]} failed; see its page, or use {SKIPPED}")
        else:
            answer[row.id] = Trial(waits=f"waits for the hub's action of {busy[0]}") if busy else CLEAR
    return answer
