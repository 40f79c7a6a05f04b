"""The parts that every request of the service needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from whet.hub.domain.access import Caller
from whet.hub.domain.hub import Hub
from whet.hub.opening import open_hub
from whet.hub.storage.database import migrate
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import TokenRow
from whet.service.domain.access import SEE, Viewer, viewer_of
from whet.service.domain.blobs import clean_blobs
from whet.service.library import ServiceLibrary
from whet.service.storage.database import SERVICE_SCHEMA
from whet.service.storage.tables import RunRow
from whet.system import untrusted


@dataclass
class Service:
    """One API's hub, folder and stores."""

    hub: Hub
    data: Path
    blobs: FileStore
    library: ServiceLibrary
    tries: bool = True
    """Whether the hub tries what is pushed, so that runs wait for that."""
    uploading: threading.Lock = field(default_factory=threading.Lock)

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
        migrate(hub.database, schema=SERVICE_SCHEMA)
        (data / "runs").mkdir(mode=0o711, exist_ok=True)
        untrusted.distrust(data / "runs")
        blobs = FileStore(str(data / "blobs"))
        library = ServiceLibrary(hub.database, data, lambda viewer: _refreshed(hub, viewer))
        service = Service(hub, data, blobs, library, tries)
        clean_blobs(hub.database, blobs)
        remove_deleted(service)
        yield service, token


def _refreshed(hub: Hub, viewer: Viewer) -> Viewer | None:
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
