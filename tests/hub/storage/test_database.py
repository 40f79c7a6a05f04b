"""New and migrated databases have the tables of the code; files are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from whet.errors import ConfigError
from whet.hub.errors import HubError
from whet.hub.storage.database import Database, migrate
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import Account, Base


@pytest.fixture
def database(tmp_path: Path, database_url: str | None) -> Any:
    found = Database(database_url or f"sqlite:///{tmp_path / 'hub.sqlite'}")
    yield found
    found.close()


def _differences(database: Database) -> list[Any]:
    with database.engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), Base.metadata)


def _use(database: Database) -> None:
    with database.write() as session:
        session.add(Account(name="ann", kind="user", is_admin=False, created_at=1.0))


def test_new_database_has_the_tables_of_the_code_and_is_at_the_newest_revision(database: Database) -> None:
    for _ in range(2):
        migrate(database)
        assert _differences(database) == []
    _use(database)


def test_database_of_the_first_revision_is_migrated_to_the_tables_of_the_code(database: Database) -> None:
    postgresql = database.url.get_backend_name() == "postgresql"
    tables = Path(__file__).with_name("revision_0001.sql").read_text(encoding="utf-8")
    with database.engine.begin() as connection:
        for statement in filter(None, tables.split(";\n")):
            connection.exec_driver_sql(statement.replace("BLOB", "BYTEA") if postgresql else statement)
    migrate(database)
    assert _differences(database) == []
    if not postgresql:  # the file is of SQLite, whose primary keys count by themselves
        _use(database)


def test_tables_of_another_program_are_refused(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE accounts (id INTEGER)")
    with pytest.raises(ConfigError, match="already exists"):
        migrate(database)


def test_change_that_fails_leaves_nothing(database: Database) -> None:
    migrate(database)

    def fail() -> None:
        with database.write() as session:
            session.add(Account(name="ann", kind="user", is_admin=False, created_at=1.0))
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.read() as session:
        assert session.query(Account).count() == 0


def test_changes_wait_for_each_other(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(database)
    monkeypatch.setattr("whet.hub.storage.database.BUSY_MS", 50)
    other = Database(database.url.render_as_string(hide_password=False))
    with database.write(), pytest.raises(HubError) as caught, other.write():
        pass
    assert caught.value.code == "busy"
    with other.write() as session:
        session.add(Account(name="ann", kind="user", is_admin=False, created_at=1.0))
    other.close()


def test_store_keeps_files_by_content_and_removes_what_no_row_names(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "files"))
    source = tmp_path / "source"
    source.write_bytes(b"content")
    for sha256 in ("a" * 64, "b" * 64):
        store.add(source, sha256)
        store.add(source, sha256)
    (tmp_path / "files" / "aside" / "half").write_bytes(b"cont")
    assert store.names() == {"a" * 64, "b" * 64}
    assert store.keep_only({"a" * 64}) == 2
    assert store.names() == {"a" * 64}
    with store.open("a" * 64) as stream:
        assert stream.read() == b"content"
    assert list((tmp_path / "files" / "aside").iterdir()) == []


def test_file_that_cannot_be_stored_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(str(tmp_path / "files"))
    source = tmp_path / "source"
    source.write_bytes(b"content")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            store.add(source, "a" * 64)
    assert store.keep_only(set()) == 0


def test_store_works_on_a_remote_file_system(tmp_path: Path) -> None:
    store = FileStore("memory://hub-test")
    source = tmp_path / "source"
    source.write_bytes(b"content")
    store.add(source, "a" * 64)
    assert store.local_path("a" * 64) is None
    assert store.names() == {"a" * 64}
    with store.open("a" * 64) as stream:
        assert stream.read() == b"content"
    assert store.keep_only(set()) == 1
