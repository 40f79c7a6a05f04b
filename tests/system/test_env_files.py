"""env_file: KEY=VALUE lines become environment variables, and values never show up in a message."""

from pathlib import Path

import pytest

from whet.errors import ConfigError
from whet.system.env_files import load_env_files, parse_env_file


def test_comments_quotes_and_export_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text("# judge\nexport A=1\nB = 'two words'\n\nC=\"x=y\"\nD=\n")
    assert parse_env_file(path) == {"A": "1", "B": "two words", "C": "x=y", "D": ""}


def test_a_bad_line_is_named_by_number_without_its_text(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text("A=1\nsk-very-secret\n")
    with pytest.raises(ConfigError, match="line 2") as caught:
        parse_env_file(path)
    assert "secret\n" not in str(caught.value)
    assert "sk-very" not in str(caught.value)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        parse_env_file(tmp_path / "none.env")


def test_the_shell_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.env"
    path.write_text("WHET_TEST_A=file\nWHET_TEST_B=file\n")
    monkeypatch.setenv("WHET_TEST_A", "shell")
    monkeypatch.setenv("WHET_TEST_B", "")
    monkeypatch.delenv("WHET_TEST_B")
    load_env_files([path])
    import os

    assert (os.environ["WHET_TEST_A"], os.environ["WHET_TEST_B"]) == ("shell", "file")
