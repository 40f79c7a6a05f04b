"""The database: SQLite or PostgreSQL, migrations, and transactions that are right on both.

A change takes the one row of `state` first, so changes happen one after the other on either database.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, extract, func, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.orm import Session

from whet.errors import ConfigError
from whet.hub.errors import HubError
from whet.hub.storage.tables import Base, HubState

BUSY_MS = 15_000
INDEX_CHANGED = "index changed"
LOG_ONLY = "log only"
"""In `info` of a session that writes what `Database.changes` does not count."""
MIGRATING = Path(__file__).with_name("migrations")
LOCK_KEY = 0x77686574  # of PostgreSQL's advisory lock: one server per database
_FULL = ("database or disk is full", "no space left", "could not extend file")
_LOCKED = ("locked", "deadlock", "could not obtain lock", "lock timeout")


class Database:
    """Transactions on one database. `read()` sees one state; `write()` changes it, alone."""

    def __init__(self, url: str) -> None:
        self.url = database_url(url)
        self.engine = _engine(self.url)
        self._writing = self.engine.execution_options(writes=True)
        self._lock: Connection | None = None
        # SQLite makes a writer that finds another wait by sleeping; within this process they take turns instead.
        self._turn = threading.Lock()
        self._takes_turns = self.url.get_backend_name() == "sqlite"
        self._counting = threading.Lock()
        self.changes = 0  # grows with every write, but for those that say `LOG_ONLY`
        self.generation = 0  # grows with every change of what an index page shows, and to which callers

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """A session whose changes are not kept."""
        with readable_errors(), Session(self.engine, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextlib.contextmanager
    def write(self) -> Iterator[Session]:
        """A session that is committed at its end, unless there is an exception. Raises `HubError` (busy, disk_full)."""
        with readable_errors(), self._own_turn(), Session(self._writing, expire_on_commit=False) as session:
            with session.begin():
                session.execute(select(HubState.id).with_for_update())
                yield session
            with self._counting:
                self.generation += bool(session.info.get(INDEX_CHANGED))
                self.changes += not session.info.get(LOG_ONLY)

    @contextlib.contextmanager
    def _own_turn(self) -> Iterator[None]:
        if not self._takes_turns:
            yield
            return
        if not self._turn.acquire(timeout=BUSY_MS / 1000):
            raise HubError("busy", "the hub's database is busy; nothing was changed. Try again.")
        try:
            yield
        finally:
            self._turn.release()

    def take(self) -> None:
        """Claim the database for this server, where it can be shared. Raises `ConfigError` where another has it."""
        if self.url.get_backend_name() != "postgresql":
            return
        self._lock = self.engine.connect()
        if not self._lock.scalar(text(f"SELECT pg_try_advisory_lock({LOCK_KEY})")):
            self._lock.close()
            raise ConfigError(f"another hub runs on {self.shown}. Stop it first, or name another --database.")
        self._lock.commit()

    @property
    def shown(self) -> str:
        """The address without its password."""
        return self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self.engine.dispose()


def database_now(session: Session) -> float:
    """Seconds since 1970 by the database's clock, so that machines whose clocks differ agree."""
    if session.get_bind().dialect.name == "postgresql":
        return float(session.scalar(select(extract("epoch", func.clock_timestamp()))) or 0.0)
    return float(session.scalar(select((func.julianday("now") - 2440587.5) * 86400.0)) or 0.0)


def database_url(url: str) -> URL:
    """The address with its driver. Raises `ConfigError` where it is none of the two kinds."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError(f"--database {url.partition('@')[2] or url} is no address of a database.") from None
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise ConfigError(f"--database is of the kind '{kind}'. Give sqlite:///FILE or postgresql://USER@HOST/NAME.")
    return parsed.set(drivername="postgresql+psycopg") if kind == "postgresql" else parsed


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        options = {"options": f"-c lock_timeout={BUSY_MS} -c timezone=UTC"}
        return create_engine(url, pool_size=20, max_overflow=30, pool_pre_ping=True, connect_args=options)
    engine = create_engine(url, pool_size=20, max_overflow=30, connect_args={"timeout": BUSY_MS / 1000})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where this module says
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_MS}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Failures of the database that a caller may meet, as `HubError`s."""
    try:
        yield
    except OperationalError as error:
        said = str(error.orig).lower()
        if any(mark in said for mark in _FULL):
            raise HubError("disk_full", "the hub's disk is full; nothing was changed. Free space there.") from error
        if any(mark in said for mark in _LOCKED):
            raise HubError("busy", "the hub's database is busy; nothing was changed. Try again.") from error
        raise


# Migrations


@dataclass(frozen=True, slots=True)
class Schema:
    """Tables with migrations of their own; several may share a database."""

    metadata: MetaData
    folder: Path
    version_table: str


HUB_SCHEMA = Schema(Base.metadata, MIGRATING, "alembic_version")


def _config(connection: Connection, schema: Schema) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATING))
    config.set_main_option("version_locations", str(schema.folder / "versions"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"], config.attributes["schema"] = connection, schema
    return config


def migrate(database: Database, schema: Schema = HUB_SCHEMA) -> None:
    """Make the tables, or bring older ones up to date. Raises `ConfigError` for a database that cannot be used."""
    try:
        with database._writing.begin() as connection:
            config = _config(connection, schema)
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            options = {"version_table": schema.version_table}
            current = MigrationContext.configure(connection, opts=options).get_current_revision()
            if current is not None and current not in known:
                raise ConfigError(
                    f"the database {database.shown} was made by a newer whet (revision {current}). Update whet here."
                )
            if current is None:
                schema.metadata.create_all(connection, checkfirst=False)
                command.stamp(config, "head")
            else:
                command.upgrade(config, "head")
    except DBAPIError as error:
        said = " ".join(str(error.orig).split())
        what = "is locked by another program" if "locked" in said else f"cannot be used: {said}"
        raise ConfigError(f"the database {database.shown} {what}.") from error
