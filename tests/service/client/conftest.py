"""A home for the client's settings, and a service that the commands reach over HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
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


class LosesAnswers:
    """An application that does what it is asked to, and whose next answers to submissions of runs are lost."""

    def __init__(self, app: Any) -> None:
        self.app, self.left = app, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        submission = scope["type"] == "http" and (scope["method"], scope["path"]) == ("POST", "/api/v1/runs")
        if not (submission and self.left):
            await self.app(scope, receive, send)
            return
        self.left -= 1

        async def lose(_: Any) -> None:
            """The answer."""

        await self.app(scope, receive, lose)
        raise ConnectionError("the line is broken")


class Commands:
    """Commands of a user who is logged in to a service."""

    def __init__(self, service: Any, app: LosesAnswers, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.service = service
        self.app = app
        self.address = address
        self._capsys = capsys
        self.user = service.user(f"user-{len(service.tokens)}")
        self.log_in(self.user)

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


@pytest.fixture(scope="module")
def listening(serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, LosesAnswers, str]]:
    """A service, its application, and the address where that answers."""
    with serving.running_service(tmp_path_factory.mktemp("service") / "data") as service:
        app = LosesAnswers(service.app)
        with sys.modules["hub_running"].listening(app) as address:
            yield service, app, address


@pytest.fixture
def commands(listening: tuple[Any, LosesAnswers, str], capsys: pytest.CaptureFixture[str]) -> Commands:
    """The commands of a new user."""
    return Commands(*listening, capsys)
