"""Files of submissions: stored by content, named in a submission only by a user that uploaded them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from whet.hub.errors import HubError
from whet.hub.storage.database import Database, database_now
from whet.hub.storage.store import FileStore
from whet.service.storage.tables import Blob, RunRow

FILE_BYTES = 50 << 20
USER_BYTES = 5 << 30
"""Of all files that a user uploaded and that are still kept."""

UNNAMED_S = 24 * 3600.0
"""How long a file is kept without a run that names it."""


def check_room(session: Session, user: str, size: int) -> None:
    """Raises `HubError` (too_large) where the user's files would take too much."""
    total = select(func.sum(Blob.size)).where(Blob.user == user)
    if int(session.scalar(total) or 0) + size > USER_BYTES:
        raise HubError("too_large", f"the files of {user}'s runs take {USER_BYTES >> 30} GiB. Delete some runs first.")


def add_blob(session: Session, user: str, sha256: str, size: int, now: float) -> None:
    """Record an upload, whose bytes are in the store."""
    row = session.get(Blob, (user, sha256))
    if row is None:
        check_room(session, user, size)
        session.add(Blob(user=user, sha256=sha256, size=size, uploaded_at=now))
    else:
        row.uploaded_at = now


def missing_blobs(session: Session, user: str, hashes: Iterable[str]) -> set[str]:
    """Those that the user has not uploaded."""
    wanted = set(hashes)
    known = select(Blob.sha256).where(Blob.user == user, Blob.sha256.in_(wanted))
    return wanted - set(session.scalars(known))


def link_files(store: FileStore, folder: Path, files: Mapping[str, str]) -> None:
    """The files of a submission under their names, to be read: links where the store is a folder of this machine."""
    for name, sha256 in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        local = store.local_path(sha256)
        if local is not None:
            target.symlink_to(local)
            continue
        with store.open(sha256) as source, target.open("wb") as copy:
            while block := source.read(1 << 20):
                copy.write(block)


def clean_blobs(database: Database, store: FileStore) -> int:
    """Remove the files that no run names and that were uploaded long ago, and what was left aside; returns how many.

    Call it where no upload runs: a file is in the store before its row is.
    """
    with database.write() as session:
        named: set[str] = set()
        for files in session.scalars(select(RunRow.files).where(RunRow.deleted_at.is_(None))):
            named.update(files.values())
        old = select(Blob.sha256).where(Blob.uploaded_at < database_now(session) - UNNAMED_S)
        gone = set(session.scalars(old)) - named
        for sha256 in gone:
            session.execute(delete(Blob).where(Blob.sha256 == sha256))
        kept = set(session.scalars(select(Blob.sha256)))
    return store.keep_only(kept | named)
