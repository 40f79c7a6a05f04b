"""`whet hub serve`: how it starts, how it ends, and what its user reads when it cannot."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from sqlalchemy import text

from whet.cli.main import main
from whet.errors import ConfigError
from whet.hub.opening import open_hub
from whet.hub.storage.database import Database


def run(*arguments: str, **env: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "whet.cli.main", "hub", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, **env})
    return done.returncode, done.stderr


def test_first_start_prints_a_token_once_and_a_signal_ends_it_well(served: Any, packages: Any, tmp_path: Path) -> None:
    first = served("--no-actions")
    assert first.ok("GET", "/whoami", "hub-admin")["is_admin"] is True
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", first.address)
    first.user("ann")
    assert first.push("ann", "ann", packages.Wheel()).status_code == 201
    assert (tmp_path / "hub" / "secrets.key").stat().st_mode & 0o777 == 0o600
    token = first.tokens["ann"]
    assert first.end() == 0
    again = served("--no-actions", token=token)
    assert not any("token" in line for line in again.lines)
    assert again.ok("GET", "/environments/ann/word-game/versions/1.0.0", "hub-admin")["version"] == "1.0.0"
    code, said = run("--data", str(tmp_path / "hub"), "--port", "0")
    assert (code, "another hub runs on" in said) == (2, True)
    code, said = run("--data", str(tmp_path / "other"), "--port", again.address.rpartition(":")[2])
    assert code == 2
    assert said.startswith("error: cannot listen on 127.0.0.1:")
    assert again.end(2) == 0
    assert not any("Traceback" in line for line in first.lines + again.lines)


def test_missing_extra_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; from whet.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "hub", "serve", "--data", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: serving a hub needs the 'hub' extra. Install it with: pip install 'whet[hub]'."
    )


def refusal(data: Path, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught, open_hub(data, **more):
        pass
    return str(caught.value)


def test_a_lost_token_of_the_administrator_is_replaced(
    running: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "hub"
    assert main(["hub", "recover", "--data", str(data)]) == 2
    assert "there is no hub in" in capsys.readouterr().err
    with running.running(data) as hub:
        lost = hub.tokens["hub-admin"]
        assert main(["hub", "recover", "--data", str(data)]) == 2
        assert "another hub runs on" in capsys.readouterr().err
    assert main(["hub", "recover", "--data", str(data)]) == 0
    found = capsys.readouterr().out.strip()
    with running.running(data) as hub:
        hub.tokens = {"lost": lost, "found": found}
        hub.refused(401, "unauthenticated", "GET", "/whoami", "lost")
        assert hub.ok("GET", "/whoami", "found")["is_admin"] is True
        assert hub.ok("GET", "/audit/verification", "found")["intact"] is True


def test_what_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal(tmp_path / "file" / "hub")
    assert "is of the kind 'mysql'" in refusal(tmp_path / "a", database="mysql://x/y")
    assert "is no address of a database" in refusal(tmp_path / "b", database="what:ever:this")
    assert "cannot be used" in refusal(tmp_path / "c", database=f"sqlite:///{tmp_path}/none/hub.sqlite")
    assert "the storage nosuch://x cannot be used" in refusal(tmp_path / "d", storage="nosuch://x")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "hub.sqlite").write_text("no database" * 1000)
    assert "cannot be used: file is not a database" in refusal(tmp_path / "e")


def test_database_of_a_newer_whet_is_refused(tmp_path: Path) -> None:
    with open_hub(tmp_path) as (hub, _), hub.database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert "made by a newer whet (revision 9999)" in refusal(tmp_path)


def test_locked_database_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.hub.storage.database.BUSY_MS", 50)
    with open_hub(tmp_path):
        pass
    database = Database(f"sqlite:///{tmp_path / 'hub.sqlite'}")
    with database.write():
        assert "is locked by another program" in refusal(tmp_path)
    database.close()


def test_another_key_than_that_of_the_secrets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_hub(tmp_path):
        pass
    monkeypatch.setenv("WHET_HUB_SECRETS_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
    assert "the key of the secrets is not the one" in refusal(tmp_path)
    monkeypatch.setenv("WHET_HUB_SECRETS_KEY", "short")
    assert "is not 32 bytes in base64" in refusal(tmp_path)


def test_port_that_is_taken_leaves_the_data_alone(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = run("--data", str(tmp_path / "hub"), "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "Choose another --port" in said
    assert not (tmp_path / "hub").exists()
