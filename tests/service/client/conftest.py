"""A home for the client's settings, and a service that the commands reach over HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.cli.main import main
from whet.hub.client.settings import HubSettings, save_token, write_settings


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
def database_url() -> None:
    """The client is the same with any database."""


class Commands:
    """Commands of a user who is logged in to a service."""

    def __init__(self, service: Any, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.service = service
        self.address = address
        self._capsys = capsys

    def log_in(self, user: str) -> None:
        save_token(self.address, self.service.tokens[user])
        write_settings(HubSettings(hub=self.address))

    def say(self, *words: str, code: int = 0) -> str:
        """What a command prints, on both streams, when it ends with this code."""
        self._capsys.readouterr()
        found = main(list(words))
        out, err = self._capsys.readouterr()
        assert found == code, out + err
        return out + err

    def answer(self, *words: str) -> Any:
        self._capsys.readouterr()
        found = main([*words, "--json"])
        out, err = self._capsys.readouterr()
        assert found == 0, out + err
        return json.loads(out)


@pytest.fixture
def around() -> Callable[[Any], Any]:
    """What is put around the service's application; a test may override it."""
    return lambda app: app


@pytest.fixture
def commands(service: Any, around: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """The commands of ann."""
    with sys.modules["hub_running"].listening(around(service.app)) as address:
        found = Commands(service, address, capsys)
        found.log_in("ann")
        yield found
