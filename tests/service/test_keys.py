"""The change of the key: every secret stays readable, the old key is gone, and a kill in between loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from whet.cli.main import main
from whet.hub.domain.cipher import Cipher, read_keys, write_keys
from whet.service import service
from whet.service.domain.secrets import secrets_of_run
from whet.service.service import rotate_key
from whet.service.storage.tables import OwnerSecret, RunRow

SECRETS = {"A": "of the owner", "B": "of the run"}


@pytest.fixture
def data(serving: Any, tmp_path: Path) -> tuple[Path, str]:
    """The folder of a service with secrets, and the run that has them."""
    folder = tmp_path / "service"
    with serving.running_service(folder) as service:
        service.user("ann")
        service.ok("PUT", "/secrets/ann/A", "ann", json={"value": SECRETS["A"]})
        hook = {"owner": "ann", "url": "https://example.org/hook", "events": ["run.finished"]}
        service.ok("POST", "/webhooks", "ann", json=hook)
        return folder, service.submit("ann", secrets={"B": SECRETS["B"]})["id"]


def secrets_now(serving: Any, folder: Path, run: str) -> dict[str, str]:
    with serving.running_service(folder) as service, service.service.hub.database.read() as session:
        return secrets_of_run(session, service.service.hub.cipher, session.get_one(RunRow, run))


def test_new_key_takes_the_place_of_the_old_one(serving: Any, data: tuple[Path, str]) -> None:
    folder, run = data
    [old] = read_keys(folder / "secrets.key")
    count, name = rotate_key(folder)
    [new] = read_keys(folder / "secrets.key")
    assert (new != old, Cipher(new).key_id, count) == (True, name, 4)  # two secrets, a webhook's, and the key's proof
    assert (folder / "secrets.key").stat().st_mode & 0o777 == 0o600
    assert secrets_now(serving, folder, run) == SECRETS
    with serving.running_service(folder) as service, service.service.hub.database.read() as session:
        assert session.get_one(OwnerSecret, ("ann", "A")).key_id == name
        assert Cipher(old).decrypt(session.get_one(OwnerSecret, ("ann", "A")).value, "owner/ann/A") is None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_during_the_change_loses_nothing(
    serving: Any, data: tuple[Path, str], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = data
    change, write = service.change_keys, service.write_keys

    def killed(*arguments: Any) -> int:
        if moment == "after":
            change(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(service, "change_keys", killed)
    with pytest.raises(KeyboardInterrupt):
        rotate_key(folder)
    assert len(read_keys(folder / "secrets.key")) == 2
    assert secrets_now(serving, folder, run) == SECRETS
    monkeypatch.setattr(service, "change_keys", change)
    assert write is write_keys
    rotate_key(folder)
    assert len(read_keys(folder / "secrets.key")) == 1
    assert secrets_now(serving, folder, run) == SECRETS


def test_command_refuses_a_folder_without_a_service_and_one_that_is_in_use(
    serving: Any, data: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "rotate-key", "--data", str(tmp_path / "none")]) == 2
    assert "there is no service in" in capsys.readouterr().err
    with serving.running_service(data[0]):
        assert main(["service", "rotate-key", "--data", str(data[0])]) == 2
    assert "another hub runs on" in capsys.readouterr().err
    assert main(["service", "rotate-key", "--data", str(data[0])]) == 0
