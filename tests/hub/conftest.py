"""What tests of the hub share."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def beside(name: str) -> Any:
    """A module of this folder: tests are imported by path, so that it is not on the path for imports."""
    spec = importlib.util.spec_from_file_location(f"hub_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_packages = beside("packages")
if importlib.util.find_spec("sqlalchemy") is not None:
    beside("unsynced")
USERS = ("ann", "bob", "eve")


@pytest.fixture(scope="session")
def packages() -> Any:
    """Wheels and source archives; see `packages.py`."""
    return _packages


_running = beside("running")


@pytest.fixture(scope="session")
def running() -> Any:
    """A hub in this process or in its own; see `running.py`."""
    return _running


@pytest.fixture
def open_hub(tmp_path: Path, database_url: str | None) -> Any:
    """Opens the test's hub: `with open_hub() as running`; again after that, it is the same one."""
    return lambda **more: _running.running(tmp_path / "hub", database_url, **more)


@pytest.fixture(scope="session")
def first_hub(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of a hub on SQLite with the users ann, bob and eve, to be copied; and their tokens."""
    folder = tmp_path_factory.mktemp("hub") / "hub"
    with _running.running(folder, None) as found:
        for name in USERS:
            found.user(name)
        return folder, found.tokens


@pytest.fixture
def hub(
    open_hub: Any, tmp_path: Path, database_url: str | None, first_hub: tuple[Path, dict[str, str]]
) -> Iterator[Any]:
    """A running hub with the users ann, bob and eve; see `running.py`."""
    folder, tokens = first_hub
    if database_url is None:
        shutil.copytree(folder, tmp_path / "hub")
    with open_hub() as found:
        if database_url is None:
            found.tokens = dict(tokens)
        else:
            for name in USERS:
                found.user(name)
        yield found


@pytest.fixture
def served(tmp_path: Path, database_url: str | None) -> Iterator[Any]:
    """Starts `whet hub serve` on the test's folder, as often as it is called; none is left in the end."""
    started = []

    def start(*more: str, token: str | None = None) -> Any:
        database = ("--database", database_url) if database_url is not None else ()
        found = _running.Served(tmp_path / "hub", *database, *more, token=token)
        started.append(found)
        return found

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end(9)


@pytest.fixture
def listening() -> Any:
    """`with listening(app) as address`: an application on a loopback port."""
    return _running.listening
