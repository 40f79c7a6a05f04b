"""A hub's folder and database are its user's alone, from the first start on and after an older version's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from whet.errors import ConfigError
from whet.hub import opening


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_new_folder_and_database_are_private(tmp_path: Path) -> None:
    data = tmp_path / "hub"
    with opening.open_hub(data):
        assert rights(data) == 0o700
        assert {path.name: rights(path) for path in data.glob("hub.sqlite*")} == {
            path.name: 0o600 for path in data.glob("hub.sqlite*")
        }
        assert (data / "hub.sqlite").exists()
    assert rights(data / "secrets.key") == 0o600


def test_rights_of_an_older_version_are_taken_away(tmp_path: Path) -> None:
    data = tmp_path / "hub"
    with opening.open_hub(data):
        pass
    data.chmod(0o755)
    for name in ("hub.sqlite", "hub.sqlite-wal", "hub.sqlite-shm"):
        (data / name).touch()
        (data / name).chmod(0o644)
    with opening.open_hub(data):
        assert rights(data) == 0o700
        assert {rights(path) for path in data.glob("hub.sqlite*")} == {0o600}


def test_empty_folder_that_others_may_read_is_closed(tmp_path: Path) -> None:
    data = tmp_path / "hub"
    data.mkdir(mode=0o755)
    opening.keep_private(data)
    assert rights(data) == 0o700


def test_folder_with_files_of_others_is_refused_and_left(tmp_path: Path) -> None:
    data = tmp_path / "shared"
    data.mkdir(mode=0o755)
    (data / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"files that are not the hub's.*chmod 700"):
        opening.keep_private(data)
    assert rights(data) == 0o755
    common = tmp_path / "tmp"
    common.mkdir()
    common.chmod(0o1777)
    with pytest.raises(ConfigError, match="other users may read"), opening.open_hub(common):
        pass
    assert rights(common) == 0o1777


def test_database_elsewhere_is_private_too(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    with opening.open_hub(tmp_path / "hub", f"sqlite:///{elsewhere / 'my.db'}"):
        assert {rights(path) for path in elsewhere.glob("my.db*")} == {0o600}
    assert rights(elsewhere) == 0o755
