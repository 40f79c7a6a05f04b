"""The service's tables are migrated on their own, in the hub's database."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from whet.errors import ConfigError
from whet.hub.storage.database import Database, database_now, migrate
from whet.hub.storage.tables import Base
from whet.service.storage.tables import SERVICE_SCHEMA, VERSION_TABLE, ServiceBase, joined_database


def test_migrations_go_up_down_and_up_and_make_the_tables_of_the_code(database: Database) -> None:
    for _ in range(2):
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            found = compare_metadata(context, [Base.metadata, ServiceBase.metadata])
            assert [one for one in found if getattr(one[1], "name", "") != "alembic_version"] == []
        migrate(database, "base", SERVICE_SCHEMA)
        with database.engine.connect() as connection:
            assert set(inspect(connection).get_table_names()).isdisjoint(ServiceBase.metadata.tables)
            assert set(inspect(connection).get_table_names()) >= set(Base.metadata.tables)
        migrate(database, schema=SERVICE_SCHEMA)


def test_time_is_that_of_the_database(database: Database) -> None:
    with database.write() as session:
        first = database_now(session)
    with database.read() as session:
        assert first <= database_now(session)
    assert abs(first - time.time()) < 600  # the same epoch and unit as this machine's clock


def test_parts_join_only_a_database_that_has_a_service(tmp_path: Path) -> None:
    def refusal(**more: Any) -> str:
        with pytest.raises(ConfigError) as caught, joined_database(tmp_path, **more):
            pass
        return str(caught.value)

    assert "there is no service in" in refusal()
    database = Database(f"sqlite:///{tmp_path / 'hub.sqlite'}")
    migrate(database)
    assert "has no service. Start its API first" in refusal()
    migrate(database, schema=SERVICE_SCHEMA)
    with joined_database(tmp_path) as joined, joined.read() as session:
        assert database_now(session) > 0
    database.close()
