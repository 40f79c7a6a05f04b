"""The parts that every request of the service needs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from whet.errors import ConfigError
from whet.hub.domain.access import Caller
from whet.hub.domain.audit import record
from whet.hub.domain.cipher import KEY_BYTES, KEY_VAR, Cipher, read_keys, write_keys
from whet.hub.domain.hub import Hub
from whet.hub.errors import HubError
from whet.hub.opening import ADMINISTRATOR, open_hub
from whet.hub.storage.database import Database, database_now, migrate
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import TokenRow
from whet.service.domain.access import SEE, RequestUser, viewer_of
from whet.service.domain.secrets import change_keys
from whet.service.library import ServiceLibrary
from whet.service.storage.tables import SERVICE_SCHEMA, Blob, RunRow
from whet.system import untrusted
from whet.tinker.storage.tables import TINKER_SCHEMA


@dataclass
class Service:
    """One API's hub, folder and stores."""

    hub: Hub
    data: Path
    blobs: FileStore
    library: ServiceLibrary
    tries: bool = True
    """Whether the hub tries what is pushed, so that runs wait for that."""

    def remove(self, run: str) -> None:
        """Remove the folder of a run; what cannot be removed now is at the next start."""
        with suppress(OSError):
            untrusted.remove(self.data / "runs", run)


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


@contextmanager
def open_service(
    data: Path, database: str | None, storage: str | None, upstream: str, *, tries: bool = True
) -> Iterator[tuple[Service, str | None]]:
    """The service of a folder, and the administrator's token if this is the first start.

    Raises `ConfigError` where another API has it, or where it cannot be used.
    """
    with open_hub(data, database, storage, upstream) as (hub, token):
        migrate(hub.database, SERVICE_SCHEMA)
        migrate(hub.database, TINKER_SCHEMA)
        (data / "runs").mkdir(mode=0o711, exist_ok=True)
        untrusted.distrust(data / "runs")
        blobs = FileStore(str(data / "blobs"))
        library = ServiceLibrary(hub.database, data, lambda viewer: _refreshed(hub, viewer))
        service = Service(hub, data, blobs, library, tries)
        clean_blobs(hub.database, blobs)
        remove_deleted(service)
        yield service, token


def _refreshed(hub: Hub, viewer: RequestUser) -> RequestUser | None:
    """A viewer with its rights of now; None where its token has ended."""
    with hub.database.read() as session:
        token = session.get(TokenRow, viewer.token)
        ended = token is None or token.revoked_at is not None or token.expires_at <= hub.clock()
        if ended or token is None or token.user.disabled_at is not None:
            return None
        return viewer_of(session, Caller(SEE, token))


def remove_deleted(service: Service) -> None:
    """Remove the folders of runs that were deleted: also those whose removal a kill interrupted."""
    with service.hub.database.read() as session:
        gone = deleted_runs(session, [path.name for path in (service.data / "runs").iterdir()])
    for run in gone:
        service.remove(run)


def deleted_runs(session: Session, folders: list[str]) -> list[str]:
    """Of folders below runs/, those whose run was deleted."""
    deleted = set(session.scalars(select(RunRow.id).where(RunRow.deleted_at.is_not(None))))
    return [name for name in folders if name in deleted]


# Files of submissions: stored by content, named in a submission only by a user that uploaded them.

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


# `whet service rotate-key`: a new key for the secrets, in the place of the present one.

FILE = "secrets.key"


def rotate_key(data: Path, database: str | None = None) -> tuple[int, str]:
    """Encrypt all secrets with a new key, and forget the old one; how many, and the new key's id.

    A kill in between leaves both keys in the file, and the same again completes it. The API must not be running, and
    runners have to be started again. Raises `ConfigError`, also where there is no service.
    """
    if database is None and not (data / "hub.sqlite").exists():
        raise ConfigError(f"there is no service in {data}. Name its folder with --data.")
    given = os.environ.get(KEY_VAR)
    if given and "," not in given:
        raise ConfigError(f"{KEY_VAR} holds the key. Set it to NEW,OLD (both in base64), then give this command again.")
    with open_service(data, database, None, "https://pypi.org/simple/") as (service, _):
        keys = read_keys(data / FILE)
        if not given:
            keys = [secrets.token_bytes(KEY_BYTES), *keys]
            write_keys(data / FILE, keys)  # before any row needs it
        cipher = Cipher(*keys)
        with service.hub.database.write() as session:
            changed = change_keys(session, cipher, cipher)
            detail = {"key": cipher.key_id, "secrets": changed}
            now = database_now(session)
            record(session, ADMINISTRATOR, "key.rotate", ADMINISTRATOR, cipher.key_id, now, detail)
        if not given:
            write_keys(data / FILE, keys[:1])
    return changed, cipher.key_id
