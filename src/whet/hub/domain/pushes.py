"""Pushes: announced, uploaded in pieces, checked, and committed in one transaction or not at all."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from whet.errors import ConfigError
from whet.hub.archive.names import check_environment_name, check_version
from whet.hub.archive.problems import ArchiveRefusedError
from whet.hub.archive.sdists import check_sdist
from whet.hub.archive.wheels import WheelFacts, check_filename, check_wheel
from whet.hub.domain.access import Caller, find_account, permit, role_in
from whet.hub.domain.accounts import bump
from whet.hub.domain.audit import record
from whet.hub.domain.hub import MIB, Hub
from whet.hub.domain.views import total_bytes
from whet.hub.errors import HubError, not_found
from whet.hub.policy import PUSH
from whet.hub.storage.tables import Account, ActionRow, EnvironmentRow, Push, StoredFile, Version

CHUNK = 1 << 20
Expected = Mapping[str, Mapping[str, Any]]


def begin(
    hub: Hub,
    session: Session,
    caller: Caller,
    owner: str,
    name: str,
    version: str,
    visibility: str | None,
    expected: Expected,
) -> tuple[Push, bool]:
    """A new push, or the open one of the same bytes; and whether it is new. A committed version is a finished push."""
    account, environment = _namespace(session, caller, owner, name)
    _check_names(name, version, expected)
    now = hub.clock()
    push = Push(
        id=secrets.token_hex(16),
        user_id=caller.known.id,
        owner_id=account.id,
        name=name,
        version=version,
        visibility=visibility,
        expected={kind: dict(file) for kind, file in expected.items()},
        findings=[],
        created_at=now,
        expires_at=now + hub.limits.push_s,
    )
    is_new = not _is_published(hub, session, account, environment, push)
    expire(hub, session, now)
    if is_new:
        mine = select(Push).where(Push.user_id == caller.known.id, Push.state == "open")
        for row in session.scalars(mine):
            same = (row.owner_id, row.name, row.version, row.visibility) == (account.id, name, version, visibility)
            if same and row.expected == expected and row.expires_at > now:
                return row, False
        if int(session.scalar(select(func.count()).select_from(mine.subquery())) or 0) >= hub.limits.open_pushes:
            raise HubError("too_many", f"you have {hub.limits.open_pushes} open pushes. Commit or abort some first.")
    push.state = "open" if is_new else "committed"
    session.add(push)
    return push, is_new


def expire(hub: Hub, session: Session, now: float) -> int:
    """Close pushes that had no bytes for too long, and remove what was uploaded; returns how many."""
    old = list(session.scalars(select(Push).where(Push.state == "open", Push.expires_at <= now)))
    for row in old:
        row.state = "expired"
        discard(hub, row.id)
    return len(old)


def _namespace(session: Session, caller: Caller, owner: str, name: str) -> tuple[Account, EnvironmentRow | None]:
    """The owner that the caller may push to, and the environment if it is there."""
    account = find_account(session, owner)
    environment = None
    if account is not None:
        query = select(EnvironmentRow).where(EnvironmentRow.owner_id == account.id, EnvironmentRow.name == name)
        environment = session.scalar(query)
    public = environment is not None and environment.visibility == "PUBLIC"
    permit(caller, role_in(session, caller, account), visible=public, what=f"owner {owner}")
    if account is None:
        raise not_found(f"owner {owner}")
    return account, environment


def _check_names(name: str, version: str, expected: Expected) -> None:
    try:
        check_environment_name(name)
        check_version(version)
        check_filename(expected["wheel"]["filename"], name, version)
    except ArchiveRefusedError as error:
        raise _refused(error) from None
    except ConfigError as error:
        raise HubError("invalid", str(error)) from None


def _is_published(hub: Hub, session: Session, account: Account, environment: EnvironmentRow | None, push: Push) -> bool:
    """Whether the version is there with the same bytes. Raises `HubError` for what stands against it."""
    for kind, file in push.expected.items():
        if file["size"] > hub.limits.file_bytes:
            most = hub.limits.file_bytes // MIB
            raise HubError("too_large", f"the {kind} has {file['size']} bytes; at most {most} MiB are allowed.")
    if total_bytes(session, account.id) + sum(file["size"] for file in push.expected.values()) > hub.limits.owner_bytes:
        most = hub.limits.owner_bytes // MIB
        raise HubError("too_large", f"{account.name} would have more than {most} MiB. Delete versions first.")
    if environment is None:
        return False
    named = environment.env_id
    if environment.deleted_at is not None:
        raise HubError("environment_deleted", f"{named} was deleted; its name is not given out again.")
    if push.visibility not in (None, environment.visibility):
        raise HubError("conflict", f"{named} is {environment.visibility}. Change that first, or leave it out.")
    query = select(Version).where(Version.environment_id == environment.id, Version.version == push.version)
    row = session.scalar(query)
    if row is None:
        return False
    if row.deleted_at is not None:
        raise HubError("version_deleted", f"{named}@{push.version} was deleted; push another version.")
    there = {file.kind: file.sha256 for file in row.files}
    differing = [kind for kind, file in push.expected.items() if there.get(kind) != file["sha256"]]
    if differing:
        what = " and ".join(differing)
        raise HubError(
            "version_exists",
            f"{named}@{push.version} is there with another {what}. Versions never change: push a new one.",
        )
    return True


def _refused(error: ArchiveRefusedError) -> HubError:
    details = [{"file": one.file, "code": one.code, "reason": one.reason} for one in error.problems]
    return HubError("archive_refused", str(error) + ".", details)


def own_push(session: Session, caller: Caller, push_id: str) -> Push:
    """A push of the caller."""
    permit(caller)
    row = session.get(Push, push_id)
    if row is None or row.user_id != caller.known.id:
        raise not_found("push")
    return row


def open_push(hub: Hub, session: Session, caller: Caller, push_id: str) -> Push:
    """The caller's push that still takes files. Raises `HubError` for one that is closed or has expired."""
    row = own_push(session, caller, push_id)
    if row.state != "open" or row.expires_at <= hub.clock():
        state = row.state if row.state != "open" else "expired"
        raise HubError("push_closed", f"the push is {state}. Begin a new one.")
    return row


def staged(hub: Hub, push: Push, kind: str) -> Path:
    """The path where the file of a kind ("wheel", "sdist") is uploaded to."""
    return hub.uploads / push.id / kind


def append(path: Path, offset: int, data: bytes, size: int) -> int:
    """Write what arrived at the end of an upload; returns the new offset."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.open("ab") as file:
        there = file.tell()
        if there != offset:
            details = [{"offset": there}]
            raise HubError("wrong_offset", f"the upload has {there} bytes, not {offset}. Continue there.", details)
        if offset + len(data) > size:
            raise HubError("too_large", f"the file was announced with {size} bytes and has more.")
        file.write(data)
    return offset + len(data)


def abort(session: Session, caller: Caller, push_id: str) -> None:
    """Close a push that is open, without publishing it. Raises `HubError` for one that is closed."""
    row = own_push(session, caller, push_id)
    if row.state != "open":
        raise HubError("push_closed", f"the push is {row.state}.")
    row.state = "aborted"


def discard(hub: Hub, push_id: str) -> None:
    """Remove what was uploaded."""
    shutil.rmtree(hub.uploads / push_id, ignore_errors=True)
    hub.push_locks.pop(push_id, None)


def inspect(hub: Hub, push: Push) -> WheelFacts:
    """Verify size, hash and content of what was uploaded. Raises `HubError`."""
    for kind, file in push.expected.items():
        path = staged(hub, push, kind)
        there = path.stat().st_size if path.exists() else 0
        if there != file["size"]:
            raise HubError("conflict", f"the {kind} has {there} of {file['size']} bytes. Upload the rest first.")
        sha = hashlib.sha256()
        with path.open("rb") as stream:
            while piece := stream.read(CHUNK):
                sha.update(piece)
        if sha.hexdigest() != file["sha256"]:
            raise HubError("hash_mismatch", f"the {kind} that arrived is not the one that was announced. Push again.")
    try:
        with staged(hub, push, "wheel").open("rb") as stream:
            facts = check_wheel(stream, push.expected["wheel"]["filename"], push.name, push.version)
        if "sdist" in push.expected:
            with staged(hub, push, "sdist").open("rb") as stream:
                check_sdist(stream, push.expected["sdist"]["filename"], push.name, push.version)
    except ArchiveRefusedError as error:
        raise _refused(error) from None
    return facts


def refuse(session: Session, push: Push, error: HubError) -> None:
    """Close a push whose files were refused, with the error's findings."""
    row = session.get_one(Push, push.id)
    row.state, row.findings = "refused", error.details or [{"file": "", "code": error.code, "reason": str(error)}]


def publish(hub: Hub, session: Session, caller: Caller, push: Push, facts: WheelFacts) -> tuple[Push, bool]:
    """Make a checked push visible; and whether this did. The files are in the store already."""
    row = session.get_one(Push, push.id)
    if row.state == "committed":
        return row, False
    account = session.get_one(Account, row.owner_id)
    pushing = Caller(PUSH, caller.token)  # rights as they are now, not as they were when the push was begun
    _, environment = _namespace(session, pushing, account.name, row.name)
    is_published = _is_published(hub, session, account, environment, row)
    row.state = "committed"
    if is_published:
        return row, False
    now = hub.clock()
    if environment is None:
        environment = EnvironmentRow(
            owner_id=account.id, name=row.name, visibility=row.visibility or "PRIVATE", summary="", created_at=now
        )
        session.add(environment)
    environment.updated_at, environment.summary = now, storable(facts.summary)
    session.flush()
    version = Version(
        environment_id=environment.id,
        version=row.version,
        summary=storable(facts.summary),
        readme=storable(facts.readme),
        readme_type=storable(facts.readme_type)[:80],
        requires_python=facts.requires_python,
        requires_dist=list(facts.requires_dist),
        core_metadata=facts.metadata,
        pushed_by=caller.name,
        created_at=now,
        files=[StoredFile(kind=kind, **file) for kind, file in row.expected.items()],
    )
    session.add(version)
    session.flush()
    session.add(queued_action(version, now))
    bump(session)
    detail = {"sha256": row.expected["wheel"]["sha256"], "visibility": environment.visibility}
    record(session, caller.name, "version.push", account.name, f"{account.name}/{row.name}@{row.version}", now, detail)
    return row, True


def storable(text: str) -> str:
    """`text` as both databases can hold it."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def queued_action(version: Version, now: float) -> ActionRow:
    """The check of a new version, which a worker takes from the queue."""
    return ActionRow(id=secrets.token_hex(8), version_id=version.id, state="queued", queued_at=now)


def clean(hub: Hub) -> dict[str, int]:
    """At start, with no request running: expire old pushes, and remove what no row names."""
    with hub.database.write() as session:
        old = expire(hub, session, hub.clock())
    with hub.database.read() as session:
        alive = set(session.scalars(select(Push.id).where(Push.state == "open")))
        named = set(session.scalars(select(StoredFile.sha256)))
    gone = [folder for folder in hub.uploads.iterdir() if folder.name not in alive]
    for folder in gone:
        shutil.rmtree(folder)
    return {"pushes": old, "uploads": len(gone), "files": hub.store.keep_only(named)}
