"""The service's tables in the hub's database, and how a process that is not the API opens it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import inspect

from whet.errors import ConfigError
from whet.hub.storage.database import Database, Schema
from whet.service.storage.tables import ServiceBase

VERSION_TABLE = "service_alembic_version"
SERVICE_SCHEMA = Schema(ServiceBase.metadata, Path(__file__).with_name("migrations"), VERSION_TABLE)


@contextlib.contextmanager
def joined_database(data: Path, url: str | None = None) -> Iterator[Database]:
    """The database of a service that exists, for a runner and other parts. The API alone makes and migrates it.

    Raises `ConfigError` where there is none.
    """
    if url is None and not (data / "hub.sqlite").exists():
        raise ConfigError(f"there is no service in {data}. Start one with `whet service up`, or name its --data.")
    database = Database(url or f"sqlite:///{data / 'hub.sqlite'}")
    try:
        if not inspect(database.engine).has_table(VERSION_TABLE):
            raise ConfigError(f"the database {database.shown} has no service. Start its API first: whet service api")
        yield database
    finally:
        database.close()
