"""Rows as the answers of the interface (docs/design/hub.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from packaging.version import Version as Pep440
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from whet.hub.answers import (
    ActionAnswer,
    EnvironmentAnswer,
    FileAnswer,
    PushAnswer,
    PushFile,
    VersionAnswer,
    Yanked,
)
from whet.hub.archive.names import module_of
from whet.hub.domain.hub import Hub
from whet.hub.storage.tables import Account, ActionRow, EnvironmentRow, Push, StoredFile, Version


def file_path(row: Version, file: StoredFile) -> str:
    """The path of a file below the hub's address."""
    environment = row.environment
    return "files/" + "/".join(map(quote, (environment.owner.name, environment.name, row.version, file.filename)))


def newest(versions: Iterable[Version]) -> list[Version]:
    """The versions by PEP 440, the newest first."""
    return sorted(versions, key=lambda row: Pep440(row.version), reverse=True)


def latest(versions: Iterable[Version]) -> Version | None:
    """The newest that is neither yanked nor a pre-release; else the newest that is not yanked."""
    rows = [row for row in newest(versions) if row.yanked_at is None and row.deleted_at is None]
    return next((row for row in rows if not Pep440(row.version).is_prerelease), rows[0] if rows else None)


def environment_views(session: Session, rows: Sequence[EnvironmentRow]) -> list[EnvironmentAnswer]:
    """What the interface says of environments, in the order of `rows`, with one query for all their versions."""
    ids = [row.id for row in rows]
    versions: dict[int, list[tuple[str, float | None, int]]] = {identity: [] for identity in ids}
    query = select(Version.environment_id, Version.version, Version.yanked_at, Version.downloads)
    for owner_id, version, yanked_at, downloads in session.execute(
        query.where(Version.environment_id.in_(ids), Version.deleted_at.is_(None))
    ):
        versions[owner_id].append((version, yanked_at, downloads))
    return [_environment_view(row, versions[row.id]) for row in rows]


def _environment_view(row: EnvironmentRow, versions: list[tuple[str, float | None, int]]) -> EnvironmentAnswer:
    alive = sorted((Pep440(version) for version, yanked_at, _ in versions if yanked_at is None), reverse=True)
    finished = [version for version in alive if not version.is_prerelease] or alive
    return EnvironmentAnswer.of(
        row,
        id=row.env_id,
        owner=row.owner.name,
        downloads=sum(downloads for *_, downloads in versions),
        latest=str(finished[0]) if finished else None,
    )


def version_view(session: Session, row: Version, base: str) -> VersionAnswer:
    """`base` is the hub's address, which ends with a slash."""
    environment = row.environment
    files = [FileAnswer.of(file, url=base + file_path(row, file)) for file in row.files]
    wheel = files[0]
    return VersionAnswer.of(
        row,
        id=f"{environment.env_id}@{row.version}",
        owner=environment.owner.name,
        name=environment.name,
        visibility=environment.visibility,
        module=module_of(environment.name),
        sha256=wheel.sha256,
        url=wheel.url,
        requirement=f"{environment.name} @ {wheel.url}#sha256={wheel.sha256}",
        files=files,
        yanked=Yanked(reason=row.yanked_reason, at=row.yanked_at) if row.yanked_at is not None else None,
        action=newest_action(session, row),
    )


def newest_action(session: Session, row: Version) -> ActionRow | None:
    """The last check of a version; None before the first."""
    query = select(ActionRow).where(ActionRow.version_id == row.id).order_by(ActionRow.queued_at.desc()).limit(1)
    return session.scalar(query)


def action_view(row: ActionRow) -> ActionAnswer:
    """What the interface says of a check, without its log."""
    return ActionAnswer.of(row, environment=row.version.environment.env_id, version=row.version.version)


def push_view(hub: Hub, session: Session, row: Push, base: str) -> PushAnswer:
    """What the interface says of a push: its files with how many bytes have arrived, and the version once it is
    published. `base` is the hub's address, which ends with a slash."""
    files = []
    for kind, expected in row.expected.items():
        path = hub.uploads / row.id / kind
        offset = path.stat().st_size if row.state == "open" and path.exists() else 0
        offset = expected["size"] if row.state == "committed" else offset
        url = f"{base}api/v1/pushes/{row.id}/files/{kind}"
        files.append(PushFile(kind=kind, **expected, offset=offset, url=url))
    version = None
    if row.state == "committed":
        query = select(Version).join(Version.environment).where(EnvironmentRow.owner_id == row.owner_id)
        published = session.scalar(
            query.where(EnvironmentRow.name == row.name, Version.version == row.version, Version.deleted_at.is_(None))
        )
        version = version_view(session, published, base) if published is not None else None
    return PushAnswer.of(
        row,
        version_id=f"{session.get_one(Account, row.owner_id).name}/{row.name}@{row.version}",
        files=files,
        chunk_bytes=hub.limits.chunk_bytes,
        version=version,
    )


def total_bytes(session: Session, owner_id: int) -> int:
    """The bytes of all files of an owner."""
    query = select(func.coalesce(func.sum(StoredFile.size), 0)).join(StoredFile.version).join(Version.environment)
    return int(session.scalar(query.where(EnvironmentRow.owner_id == owner_id)) or 0)
