"""Environments and versions: finding, yanking, deleting, and what belongs to them."""

from __future__ import annotations

from typing import cast

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from whet.hub.answers import EnvironmentAnswer, Page
from whet.hub.domain.access import Caller, environment_for, permit, seen_by, version_for
from whet.hub.domain.accounts import bump
from whet.hub.domain.audit import record
from whet.hub.domain.hub import Hub
from whet.hub.domain.views import environment_views, newest
from whet.hub.errors import HubError, not_found
from whet.hub.storage.tables import Account, ActionRow, EnvironmentRow, Secret, StoredFile, Variable, Version


def find(
    session: Session, caller: Caller, owner: str | None, search: str | None, offset: int, limit: int
) -> Page[EnvironmentAnswer]:
    """Environments that the caller may read."""
    permit(caller)
    query = select(EnvironmentRow).join(EnvironmentRow.owner).where(seen_by(session, caller))
    query = query.where(EnvironmentRow.deleted_at.is_(None))
    if owner:
        query = query.where(Account.name == owner)
    for word in (search or "").lower().split()[:8]:
        like = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        columns = (EnvironmentRow.name, Account.name, func.lower(EnvironmentRow.summary))
        query = query.where(or_(*(column.like(like, escape="\\") for column in columns)))
    query = query.order_by(Account.name, EnvironmentRow.name).offset(offset).limit(limit + 1)
    rows = list(session.scalars(query))
    following = str(offset + limit) if len(rows) > limit else None
    return Page(items=environment_views(session, rows[:limit]), next=following)


def versions_of(session: Session, environment: EnvironmentRow) -> list[Version]:
    """The versions that are not deleted, the newest first."""
    query = select(Version).where(Version.environment_id == environment.id, Version.deleted_at.is_(None))
    return newest(session.scalars(query))


def set_visibility(
    session: Session, caller: Caller, owner: str, name: str, visibility: str, now: float
) -> EnvironmentRow:
    """Make an environment "PUBLIC" or "PRIVATE". Raises `HubError` where the caller may not."""
    row = environment_for(session, caller, owner, name)
    if row.visibility != visibility:
        row.visibility, row.updated_at = visibility, now
        bump(session)
        record(session, caller.name, "environment.visibility", owner, row.env_id, now, {"visibility": visibility})
    return row


def yank(
    session: Session, caller: Caller, owner: str, name: str, version: str, reason: str | None, now: float
) -> Version:
    """Hide a version from new installs; with no `reason` (None), take that back."""
    row = version_for(session, caller, owner, name, version)
    row.yanked_at, row.yanked_reason = (None, "") if reason is None else (now, reason)
    bump(session)
    action = "version.unyank" if reason is None else "version.yank"
    record(session, caller.name, action, owner, f"{owner}/{name}@{version}", now, {"reason": reason or ""})
    return row


def delete_version(hub: Hub, session: Session, caller: Caller, owner: str, name: str, version: str) -> set[str]:
    """A tombstone in place of a version; returns the hashes of files that may have become unused."""
    row = version_for(session, caller, owner, name, version)
    now = hub.clock()
    hashes = _bury(session, row, now)
    bump(session)
    record(session, caller.name, "version.delete", owner, f"{owner}/{name}@{version}", now)
    return hashes


def delete_environment(hub: Hub, session: Session, caller: Caller, owner: str, name: str) -> set[str]:
    """A tombstone in place of an environment; returns the hashes of files that may have become unused."""
    row = environment_for(session, caller, owner, name)
    now = hub.clock()
    hashes: set[str] = set()
    for version in versions_of(session, row):
        hashes |= _bury(session, version, now)
    for table in (Secret, Variable):
        session.execute(delete(table).where(table.environment_id == row.id))
    row.deleted_at, row.summary = now, ""
    bump(session)
    record(session, caller.name, "environment.delete", owner, row.env_id, now)
    return hashes


def _bury(session: Session, row: Version, now: float) -> set[str]:
    hashes = {file.sha256 for file in row.files}
    row.files.clear()
    row.deleted_at, row.readme, row.summary, row.core_metadata = now, "", "", b""
    session.execute(delete(ActionRow).where(ActionRow.version_id == row.id))
    return hashes


def unused(session: Session, hashes: set[str]) -> set[str]:
    """Those that no file names."""
    return hashes - set(session.scalars(select(StoredFile.sha256).where(StoredFile.sha256.in_(hashes))))


def file_for(session: Session, caller: Caller, owner: str, name: str, version: str, filename: str) -> StoredFile:
    """A file of a version that the caller may read."""
    row = version_for(session, caller, owner, name, version)
    for file in row.files:
        if file.filename == filename:
            return file
    raise not_found(f"file {filename} of {owner}/{name}@{version}")


def count_download(session: Session, file: StoredFile) -> None:
    """Add one to the downloads of the file's version."""
    session.execute(update(Version).where(Version.id == file.version_id).values(downloads=Version.downloads + 1))


# Secrets and variables


def keys_of(
    session: Session, caller: Caller, owner: str, name: str, table: type[Secret] | type[Variable]
) -> list[Secret] | list[Variable]:
    """The secrets or variables of an environment, by name; values of secrets stay encrypted."""
    environment = environment_for(session, caller, owner, name)
    rows = session.scalars(select(table).where(table.environment_id == environment.id).order_by(table.name))
    return list(rows)  # type: ignore[return-value]


def set_key(
    hub: Hub,
    session: Session,
    caller: Caller,
    where: tuple[str, str, str],
    value: str,
    table: type[Secret] | type[Variable],
) -> Secret | Variable:
    """Set a secret or a variable; `where` is owner, environment and name."""
    owner, name, key = where
    environment = environment_for(session, caller, owner, name)
    now = hub.clock()
    row = cast("Secret | Variable | None", session.get(table, (environment.id, key)))
    if row is None:
        count = select(func.count()).select_from(table).where(table.environment_id == environment.id)
        if int(session.scalar(count) or 0) >= hub.limits.keys:
            raise HubError("too_many", f"{owner}/{name} has {hub.limits.keys} of these. Delete some first.")
        row = table(environment_id=environment.id, name=key)
        session.add(row)
    if isinstance(row, Secret):
        row.value = hub.cipher.encrypt(value, secret_owner(environment, key))
    else:
        row.value = value
    row.updated_at = now
    record(session, caller.name, f"{table.__name__.lower()}.set", owner, f"{owner}/{name}", now, {"name": key})
    return row


def delete_key(
    hub: Hub, session: Session, caller: Caller, where: tuple[str, str, str], table: type[Secret] | type[Variable]
) -> None:
    """Remove a secret or a variable; `where` is owner, environment and name. Raises `HubError` where there is none."""
    owner, name, key = where
    environment = environment_for(session, caller, owner, name)
    row = session.get(table, (environment.id, key))
    kind = table.__name__.lower()
    if row is None:
        raise not_found(f"{kind} {key} of {owner}/{name}")
    session.delete(row)
    record(session, caller.name, f"{kind}.delete", owner, f"{owner}/{name}", hub.clock(), {"name": key})


def secret_owner(environment: EnvironmentRow, key: str) -> str:
    """What a secret's ciphertext is bound to."""
    return f"{environment.id}/{key}"


def secret_values(hub: Hub, session: Session, environment: EnvironmentRow) -> list[str]:
    """The secrets of an environment in plain text, to be redacted."""
    rows = session.scalars(select(Secret).where(Secret.environment_id == environment.id))
    values = [hub.cipher.decrypt(row.value, secret_owner(environment, row.name)) for row in rows]
    return [value for value in values if value]
