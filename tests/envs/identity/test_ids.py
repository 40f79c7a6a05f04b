"""Ids of environments: what each form means, and one clear message for what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whet.envs.identity.ids import EnvironmentId, label_of, parse_id
from whet.errors import EnvironmentLoadError

HASH, COMMIT = "a" * 64, "0123456789" * 4
WHEEL = "https://hub.test/files/alice/word-game/1.0.0/word_game-1.0.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gsm8k", {"name": "gsm8k"}),
        ("word_game", {"name": "word_game"}),
        ("gsm8k@1.2", {"name": "gsm8k", "version": "1.2"}),
        ("alice/word-game", {"name": "word-game", "owner": "alice"}),
        ("alice/word-game@1.0rc1", {"name": "word-game", "owner": "alice", "version": "1.0rc1"}),
        ("./here/word-game", {"name": "word-game", "path": Path("here/word-game")}),
        ("/abs/game.py", {"name": "game", "path": Path("/abs/game.py")}),
        ("game.py", {"name": "game", "path": Path("game.py")}),
        (f"{WHEEL}#sha256={HASH}", {"name": "word-game", "url": WHEEL, "hash": HASH}),
        (f"word-game @ {WHEEL}#sha256={HASH}", {"name": "word-game", "url": WHEEL, "hash": HASH}),
        (
            f"git+https://host/word-game.git@{COMMIT}",
            {"name": "word-game", "url": "https://host/word-game.git", "hash": COMMIT, "git": True},
        ),
        (
            f"game @ git+ssh://git@host/envs@{COMMIT}#subdirectory=all/game",
            {"name": "game", "url": "ssh://git@host/envs", "hash": COMMIT, "git": True, "subdirectory": "all/game"},
        ),
    ],
)
def test_each_form_is_read(text: str, parts: dict[str, Any]) -> None:
    assert parse_id(text, of_hub=True) == EnvironmentId(text, **parts)


def test_a_path_that_exists_comes_before_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("environments/game").mkdir(parents=True)
    assert parse_id("environments/game").path == Path("environments/game")
    assert parse_id("environments/game", of_hub=True).owner == "environments"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (" gsm8k", "has spaces or control characters"),
        ("gsm8k\n", "has spaces or control characters"),
        ("gs\x1b[31mm8k", "has spaces or control characters"),
        ("gsm 8k", "has the name 'gsm 8k'"),
        ("gsm8\u043a", r"has the name 'gsm8\u043a'"),
        ("x" * 65, "at most 64 characters"),
        ("gsm8k==1.2", "has the name 'gsm8k==1.2'"),
        ("a/b/c", "is no path that exists"),
        ("Alice/gsm8k", "has the owner 'Alice'"),
        ("al--ice/gsm8k", "has the owner 'al--ice'"),
        ("alice/", "has the name ''"),
        ("/../etc@1", None),
        ("gsm8k@", "has the version ''"),
        ("alice/gsm8k@latest", "has the version 'latest'"),
        ("alice/gsm8k@1@2", "has the version '1@2'"),
        ("alice/gsm8k@" + "1." * 60 + "1", "has the version '1.1."),
        (WHEEL, "names a wheel without its hash"),
        (f"{WHEEL}#sha256=abc", "names a wheel without its hash"),
        (f"other @ {WHEEL}#sha256={HASH}", "calls other what is a wheel of word_game"),
        ("https://host/word-game.tar.gz", "is neither the URL of a wheel"),
        (f"ftp://host/word_game-1.0.0-py3-none-any.whl#sha256={HASH}", "is neither the URL of a wheel"),
        ("git+https://host/word-game@main", "names no commit"),
        ("git+https://host/word-game", "names no commit"),
        (f"git+https://host/word-game@{COMMIT}#subdirectory=../up", "is no path inside the repository"),
        (f"https://me:secret@host/word_game-1.0.0-py3-none-any.whl#sha256={HASH}", "has a password"),
    ],
)
def test_a_malformed_id_is_one_line(text: str, says: str | None) -> None:
    if says is None:
        assert parse_id(text).path is not None
        return
    with pytest.raises(EnvironmentLoadError) as raised:
        parse_id(text, of_hub=True)
    message = str(raised.value)
    assert says in message
    assert "secret" not in message
    assert message.isprintable()


@example(text="~0")  # the home of a user who is not known
@given(st.text(max_size=80))
def test_any_text_is_an_id_or_a_clear_refusal(text: str) -> None:
    def message() -> str:
        try:
            found = parse_id(text, of_hub=True)
        except EnvironmentLoadError as error:
            return str(error)
        return "" if found.path is not None else ascii(found.name)[1:-1]

    assert message().isprintable()


def test_the_label_of_a_url_is_its_name() -> None:
    assert label_of(f"{WHEEL}#sha256={HASH}") == "word-game"
    assert label_of("alice/word-game@1.0") == "alice/word-game@1.0"


def test_pip_is_given_url_and_hash() -> None:
    assert parse_id(f"{WHEEL}#sha256={HASH}").requirement == f"word-game @ {WHEEL}#sha256={HASH}"
    git = f"game @ git+https://host/envs@{COMMIT}#subdirectory=all/game"
    assert parse_id(git).requirement == git
