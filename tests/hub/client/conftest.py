"""A hub in a process of its own, and a home for its client's settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.hub.client.settings import HubSettings, save_token, write_settings


@pytest.fixture(scope="module")
def hub(running: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("fastapi")
    pytest.importorskip("sqlalchemy")
    served = running.Served(tmp_path_factory.mktemp("hub") / "data", "--no-actions")
    yield served
    served.end()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the settings of the machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    for name in ("WHET_HUB", "WHET_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def user(hub: Any, request: pytest.FixtureRequest) -> str:
    """A new user, logged in here."""
    name = f"user-{len(hub.tokens)}"
    hub.user(name)
    save_token(hub.address, hub.tokens[name])
    write_settings(HubSettings(hub=hub.address))
    return name
