"""What tests of the service share: a database with its tables, in a folder or on PostgreSQL."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

USERS = ("ann", "bob", "eve")
HUB = Path(__file__).parents[1] / "hub"


def load(path: Path, name: str) -> Any:
    """A module next to tests: they are imported by path, so that it is not on the path for imports."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


load(HUB / "unsynced.py", "hub_unsynced")


@pytest.fixture(autouse=True)
def _whole_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for what is indexed and hashed meanwhile, however long that takes on a busy machine."""
    if importlib.util.find_spec("fastapi") is not None:
        names = ("data.checkpoints.CHECKED_SECONDS", "data.stores.INDEX_SECONDS", "data.stores.SEARCH_SECONDS")
        for name in (*names, "pages.run.PATIENCE"):
            monkeypatch.setattr(f"whet.dashboard.{name}", 250.0)


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of SQLite with all tables: the migrations run once, and tests copy it."""
    path = tmp_path_factory.mktemp("empty") / "hub.sqlite"
    found = _migrated(f"sqlite:///{path}")
    with found.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    found.close()
    return path.read_bytes()


def _migrated(url: str) -> Any:
    from whet.hub.storage.database import Database, migrate
    from whet.service.storage.tables import SERVICE_SCHEMA

    found = Database(url)
    migrate(found)
    migrate(found, SERVICE_SCHEMA)
    return found


@pytest.fixture
def database(tmp_path: Path, database_url: str | None, empty_sqlite: bytes) -> Iterator[Any]:
    """An empty database with the tables of the hub and of the service."""
    from whet.hub.storage.database import Database

    if database_url is None:
        (tmp_path / "hub.sqlite").write_bytes(empty_sqlite)
        found = Database(f"sqlite:///{tmp_path / 'hub.sqlite'}")
    else:
        found = _migrated(database_url)
    yield found
    found.close()


@pytest.fixture
def queue(database: Any) -> Any:
    """The queue's operations on `database`, with runs and runners in few words; see `queued.py`."""
    return load(Path(__file__).with_name("queued.py"), "service_queued").Queued(database)


@pytest.fixture(scope="session")
def packages() -> Any:
    """Wheels and source archives; see `tests/hub/packages.py`."""
    return load(HUB / "packages.py", "hub_packages")


@pytest.fixture(scope="session")
def serving() -> Any:
    """A service in this process or in its own; see `serving.py`."""
    pytest.importorskip("fastapi")
    load(HUB / "running.py", "hub_running")
    return load(Path(__file__).with_name("serving.py"), "service_serving")


@pytest.fixture(scope="session")
def first_service(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of a service on SQLite with the users ann, bob and eve, to be copied; and their tokens."""
    folder = tmp_path_factory.mktemp("service") / "service"
    with serving.running_service(folder) as found:
        for name in USERS:
            found.user(name)
        return folder, found.tokens


@pytest.fixture
def service(serving: Any, first_service: tuple[Path, dict[str, str]], tmp_path: Path, database_url: str | None) -> Any:
    """A running service with the users ann, bob and eve; see `serving.py`."""
    folder, tokens = first_service
    if database_url is None:
        shutil.copytree(folder, tmp_path / "service")
    with serving.running_service(tmp_path / "service", database_url) as found:
        if database_url is None:
            found.tokens = dict(tokens)
        else:
            for name in USERS:
                found.user(name)
        yield found


@pytest.fixture(scope="session")
def started() -> Any:
    """`whet service up` in a process of its own; see `started.py`."""
    pytest.importorskip("fastapi")
    return load(Path(__file__).with_name("started.py"), "service_started")


@pytest.fixture
def up(tmp_path: Path, started: Any) -> Iterator[Any]:
    """Starts `whet service up` on the test's folder; none is left in the end. See `started.py`."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("processes are looked for in /proc, which is not here")
    running = []

    def start(*more: str) -> Any:
        running.append(started.Up(tmp_path / "service", *more))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)
    for one in running:
        one.until(lambda one=one: not one.parts())


@pytest.fixture
def receive() -> Iterator[Callable[..., Any]]:
    """Starts a receiver of webhooks; see `webhooks/receiver.py`."""
    pytest.importorskip("cryptography")
    module, started = load(Path(__file__).parent / "webhooks" / "receiver.py", "webhook_receiver"), []

    def start(*answers: Any, **more: Any) -> Any:
        started.append(module.Receiver(*answers, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()
