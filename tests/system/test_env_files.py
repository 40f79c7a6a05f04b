"""env_file: KEY=VALUE lines become environment variables, and values never show up in a message."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whet.errors import ConfigError
from whet.system.env_files import SECRETS_FILE, load_env_files, parse_env_file, take_secrets_file
from whet.system.redaction import KNOWN


def test_comments_quotes_and_export_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text("# judge\nexport A=1\nB = 'two words'\n\nC=\"x=y\"\nD=\n")
    assert parse_env_file(path) == {"A": "1", "B": "two words", "C": "x=y", "D": ""}


def test_comments_after_values_and_a_byte_order_mark_are_no_part_of_them(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text(
        "\ufeffA=1 # a note\nB=x#y\nC='two # words' # a note\nD=\"x\"#note\nE=it's # it's\nF=\"a\"b\"\nG=x\t#\nH='a\n",
        encoding="utf-8",
    )
    found = {"A": "1", "B": "x#y", "C": "two # words", "D": "x", "E": "it's", "F": 'a"b', "G": "x", "H": "'a"}
    assert parse_env_file(path) == found


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
    assert (os.environ["WHET_TEST_A"], os.environ["WHET_TEST_B"]) == ("shell", "file")


def test_values_of_env_files_and_variables_with_telling_names_are_known_as_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.env"
    path.write_text("WHET_TEST_JUDGE=canary-of-the-file\n")
    monkeypatch.setenv("WHET_TEST_JUDGE", "canary-of-the-shell")
    monkeypatch.setenv("WHET_TEST_API_KEY", "canary-by-name")
    load_env_files([path])
    told = KNOWN.text("canary-of-the-file canary-by-name")
    assert told == "[WHET_TEST_JUDGE] [WHET_TEST_API_KEY]"


def secrets_file(folder: Path, content: object, mode: int = 0o600) -> Path:
    path = folder / "secrets.json"
    path.write_text(json.dumps(content))
    path.chmod(mode)
    return path


PROGRAM = """
import os, sys
from whet.system.env_files import load_env_files
load_env_files([])
set_as_given = os.environ["WHET_TEST_A"] == "canary-a" * 2 and os.environ["WHET_TEST_B"] == "two\\nlines"
print(set_as_given, "WHET_SECRETS_FILE" in os.environ)
print("printed", os.environ["WHET_TEST_A"])
print(os.environ["WHET_TEST_A"], file=sys.stderr)
print(b"canary-a" in open("/proc/self/environ", "rb").read() if os.path.exists("/proc/self/environ") else False)
"""


def test_a_secrets_file_is_read_once_and_removed_and_its_values_are_not_printed(tmp_path: Path) -> None:
    path = secrets_file(tmp_path, {"WHET_TEST_A": "canary-a" * 2, "WHET_TEST_B": "two\nlines"})
    environment = {**os.environ, SECRETS_FILE: str(path)}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["True False", "printed [WHET_TEST_A]", "False"]
    assert ended.stderr == "[WHET_TEST_A]\n"
    assert not path.exists()


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ({"A": "canary-a"}, 0o640, "only this user can read"),
        (["canary-a"], 0o600, "not a JSON object"),
        ({"A": 1}, 0o600, "not a JSON object"),
        ({"A=B": "canary-a"}, 0o600, "not a JSON object"),
    ],
)
def test_a_secrets_file_that_is_none_is_refused_and_removed(
    content: object, mode: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = secrets_file(tmp_path, content, mode)
    monkeypatch.setenv(SECRETS_FILE, str(path))
    with pytest.raises(ConfigError, match=message) as caught:
        take_secrets_file()
    assert "canary" not in str(caught.value)
    assert not path.exists()
    assert SECRETS_FILE not in os.environ


def test_a_link_is_no_secrets_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = secrets_file(tmp_path, {"A": "canary-a"})
    (tmp_path / "link").symlink_to(path)
    monkeypatch.setenv(SECRETS_FILE, str(tmp_path / "link"))
    with pytest.raises(ConfigError, match="WHET_SECRETS_FILE"):
        take_secrets_file()
    assert path.exists()
