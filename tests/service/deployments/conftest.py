"""What tests of deployments share: checkpoints of whet/tiny, made once, and a service with the users ann, bob, eve."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for module in ("fastapi", "sqlalchemy", "torch", "peft", "prometheus_client"):
    pytest.importorskip(module)

USERS = ("ann", "bob", "eve")
HUB = Path(__file__).parents[2] / "hub"


def load(path: Path, name: str) -> Any:
    """A module next to tests: they are imported by path, so that it is not on the path for imports."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def deploying() -> Any:
    """See `deploying.py`."""
    return load(Path(__file__).with_name("deploying.py"), "service_deploying")


@pytest.fixture(scope="session")
def checkpoints(deploying: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lora/`, `full/`: checkpoints; `merged_2`, `merged_4`, `whole_3`: the models that they are."""
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    deploying.make_checkpoints(folder)
    return folder


@pytest.fixture(scope="session")
def first_service(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of a service on SQLite with the users ann, bob and eve, to be copied; and their tokens."""
    from whet.service.service import open_service

    running = load(HUB / "running.py", "hub_running")
    data: Path = tmp_path_factory.mktemp("service") / "data"
    with open_service(data, None, None, "https://pypi.org/simple/") as (found, token):
        hub = running.Running(found.hub, token)
        for name in USERS:
            hub.user(name)
        return data, hub.tokens


@pytest.fixture
def service(
    deploying: Any, checkpoints: Path, tmp_path: Path, database_url: str | None, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """A service with the users ann, bob and eve; see `deploying.py`."""
    from whet.service.api.app import create_service_app
    from whet.service.service import open_service

    running = load(HUB / "running.py", "hub_running")
    data = tmp_path / "data"
    if database_url is None:
        folder, tokens = request.getfixturevalue("first_service")
        shutil.copytree(folder, data)
    with open_service(data, database_url, None, "https://pypi.org/simple/") as (found, token):
        hub = running.Running(found.hub, token)
        hub.app = create_service_app(found)
        hub.client = running.TestClient(hub.app, base_url="http://hub.test")
        if database_url is None:
            hub.tokens = dict(tokens)
        else:
            for name in USERS:
                hub.user(name)
        yield deploying.Service(hub, checkpoints)
