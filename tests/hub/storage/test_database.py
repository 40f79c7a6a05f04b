"""Tables and migrations agree, on a database that is migrated up, down and up again; files are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from whet.hub.errors import HubError
from whet.hub.storage.database import Database, migrate
from whet.hub.storage.store import FileStore
from whet.hub.storage.tables import Account, Base


@pytest.fixture
def database(tmp_path: Path, database_url: str | None) -> Any:
    found = Database(database_url or f"sqlite:///{tmp_path / 'hub.sqlite'}")
    yield found
    found.close()


def test_migrations_go_up_down_and_up_and_make_the_tables_of_the_code(database: Database) -> None:
    for _ in range(2):
        migrate(database)
        with database.engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        with database.write() as session:
            session.add(Account(name="ann", kind="user", is_admin=False, created_at=1.0))
        migrate(database, "base")
        with database.engine.connect() as connection:
            assert inspect(connection).get_table_names() == ["alembic_version"]


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
