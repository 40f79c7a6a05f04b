"""The hub's actions of the environments that queued runs name: a run waits for them, and is refused if one failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from whet.hub.storage.tables import Account, ActionRow, EnvironmentRow, Version


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
    found = {(owner, name, version): state for owner, name, version, state in session.execute(query)}
    return {reference: found[parts] for reference, parts in wanted.items() if parts in found}


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
