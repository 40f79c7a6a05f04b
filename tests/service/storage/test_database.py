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


def _differences(database: Database) -> list[Any]:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        differences = compare_metadata(context, [Base.metadata, ServiceBase.metadata])
    return [one for one in differences if getattr(one[1], "name", "") != "alembic_version"]


def test_new_database_has_the_tables_of_the_code(database: Database) -> None:
    migrate(database, SERVICE_SCHEMA)
    assert _differences(database) == []


def test_database_of_the_first_revision_is_migrated_to_the_tables_of_the_code(
    tmp_path: Path, database_url: str | None
) -> None:
    database = Database(database_url or f"sqlite:///{tmp_path / 'old.sqlite'}")
    migrate(database)
    tables = Path(__file__).with_name("revision_0001.sql").read_text(encoding="utf-8")
    with database.engine.begin() as connection:
        for statement in filter(None, tables.split(";\n")):
            connection.exec_driver_sql(statement.replace("BLOB", "BYTEA") if database_url is not None else statement)
        assert "tokens" not in [column["name"] for column in inspect(connection).get_columns("quotas")]
    migrate(database, SERVICE_SCHEMA)
    assert _differences(database) == []
    database.close()


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
    migrate(database, SERVICE_SCHEMA)
    with joined_database(tmp_path) as joined, joined.read() as session:
        assert database_now(session) > 0
    database.close()
