"""The commands that speak to a hub, from a login to a version that is deleted, against a hub in its own process."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from whet.authoring.scaffold import init_package
from whet.cli.main import main
from whet.errors import ConfigError, EnvironmentLoadError
from whet.hub.client.connection import HubClient, HubRequestError
from whet.hub.client.fetch import HubId, find_version
from whet.hub.client.package import find_source
from whet.hub.client.publish import Options, push
from whet.hub.client.settings import save_token, tokens_file, write_settings

pytestmark = pytest.mark.parts

Capture = pytest.CaptureFixture[str]


def said(capsys: Capture, *arguments: str, code: int = 0) -> str:
    """What a command prints, on both streams, when it ends with this code."""
    capsys.readouterr()
    found = main(list(arguments))
    out, err = capsys.readouterr()
    assert found == code, out + err
    return out + err


def answered(capsys: Capture, *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def nothing(*_: Any) -> None:
    """Shows nothing."""


def test_an_environment_is_pushed_changed_and_taken_away_again(user: str, home: Path, capsys: Capture) -> None:
    folder = init_package("letter-game").folder
    first = answered(capsys, "env", "push", "letter-game", "--no-check")
    assert (first["new"], first["id"], first["visibility"]) == (True, f"{user}/letter-game@0.1.0", "PRIVATE")
    (folder / "README.md").write_text("# Other words\n")
    assert "--auto-bump" in said(capsys, "env", "push", "letter-game", "--no-check", code=2)
    text = said(capsys, "env", "push", "letter-game", "--no-check", "--auto-bump")
    assert "pyproject.toml has 0.1.1 now" in text
    assert f"pushed {user}/letter-game@0.1.1 (PRIVATE)" in text
    assert "letter_game.py" in text
    status = answered(capsys, "env", "status", "letter-game")
    assert (status["version here"], status["on the hub"]) == ("0.1.1", "yes")
    assert status["versions there"] == ["0.1.1", "0.1.0"]

    readme = "letter_game-0.1.1/README.md"
    assert "Other words" in said(capsys, "env", "inspect", f"{user}/letter-game", readme, "--source")
    files = answered(capsys, "env", "inspect", f"{user}/letter-game@0.1.0")["files"]
    assert "letter_game.py" in [file["path"] for file in files]
    said(capsys, "env", "pull", f"{user}/letter-game@0.1.1", "--path", "pulled")
    assert (home / "pulled" / "README.md").read_text() == "# Other words\n"
    assert "exists already" in said(capsys, "env", "pull", f"{user}/letter-game", "--path", "pulled", code=2)

    said(capsys, "env", "version", "yank", f"{user}/letter-game@0.1.1", "--reason", "wrong answers")
    assert answered(capsys, "env", "info", f"{user}/letter-game")["version"] == "0.1.0"
    said(capsys, "env", "version", "yank", f"{user}/letter-game@0.1.1", "--undo")
    assert answered(capsys, "env", "info", f"{user}/letter-game")["version"] == "0.1.1"
    said(capsys, "env", "version", "delete", f"{user}/letter-game@0.1.0", "--yes")
    assert "was deleted" in said(capsys, "env", "info", f"{user}/letter-game@0.1.0", code=2)


def test_secrets_are_read_from_standard_input_and_never_shown(
    user: str, hub: Any, packages: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.push(user, user, packages.Wheel()).status_code == 201
    monkeypatch.setattr("sys.stdin", io.StringIO("value-of-the-key\n"))
    said(capsys, "env", "secret", "set", f"{user}/word-game", "API_KEY")
    text = said(capsys, "env", "secret", "list", f"{user}/word-game")
    assert "API_KEY" in text
    assert "value-of-the-key" not in text
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "is empty" in said(capsys, "env", "secret", "set", f"{user}/word-game", "API_KEY", code=2)
    said(capsys, "env", "var", "set", f"{user}/word-game", "LEVEL", "3")
    assert answered(capsys, "env", "var", "list", f"{user}/word-game")["variables"][0]["value"] == "3"
    said(capsys, "env", "secret", "delete", f"{user}/word-game", "API_KEY")
    assert answered(capsys, "env", "secret", "list", f"{user}/word-game") == {"secrets": []}


def test_login_with_a_token_and_logout_which_revokes_it(
    hub: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = hub.token(hub.user("carol"), "push")["token"]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    text = said(capsys, "login", "--hub", hub.address, "--headless")
    assert "as carol (scope push)" in text
    assert token not in text
    assert answered(capsys, "whoami")["user"] == "carol"
    assert "logged out" in said(capsys, "logout")
    hub.refused(401, "unauthenticated", "GET", "/whoami", "carol:push")
    assert token not in tokens_file().read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    assert "whet login" in said(capsys, "login", "--hub", hub.address, "--headless", code=2)


def test_login_with_a_code_that_is_confirmed_elsewhere(
    hub: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.user("dora")
    monkeypatch.setattr("whet.cli.sharing.account.time.sleep", lambda _: confirm())
    codes = []

    def confirm() -> None:
        code = capsys.readouterr().err.split()[-1]
        codes.append(code)
        hub.ok("POST", "/device/approval", "dora", json={"user_code": code, "approve": True})

    assert main(["login", "--hub", hub.address, "--scope", "read"]) == 0
    assert len(codes) == 1
    assert answered(capsys, "whoami")["scope"] == "read"


def test_an_upload_that_broke_off_continues_where_it_was(user: str, hub: Any, home: Path) -> None:
    init_package("letter-game")
    source = find_source("letter-game")

    class Breaking(HubClient):
        """Sends the first half of the first piece, and loses the connection."""

        def send(self, method: str, path: str, **request: Any) -> Any:
            if method == "PATCH":
                half = request["content"][: len(request["content"]) // 2]
                super().send(method, path, **{**request, "content": half})
                raise HubRequestError("the connection was lost")
            return super().send(method, path, **request)

    def pushed(kind: type[HubClient]) -> Any:
        offsets: list[tuple[str, int, int]] = []
        with kind(hub.address, hub.tokens[user]) as connection:
            more = {"preview": nothing, "say": nothing, "progress": lambda *step: offsets.append(step)}
            return push(connection, user, source, Options(), **more), offsets

    with pytest.raises(HubRequestError, match="lost"):
        pushed(Breaking)
    assert hub.ask("GET", f"/environments/{user}/letter-game", user).status_code == 404
    done, offsets = pushed(HubClient)
    assert done.new
    assert [kind for kind, _, _ in offsets] == ["wheel", "sdist"]
    again, offsets = pushed(HubClient)
    assert (again.new, offsets) == (False, [])


def test_a_package_with_errors_or_changes_is_pushed_only_with_the_options(
    user: str, home: Path, capsys: Capture
) -> None:
    folder = init_package("letter-game").folder
    (folder / "letter_game.py").write_text("raise ImportError('not today')\n")
    text = said(capsys, "env", "push", "letter-game", code=2)
    assert "--no-check" in text
    assert "not today" in text


@pytest.mark.parametrize("text", ["a", "a/b/c", "a/b@", "a/b@x", "A/b", "a/B!", "/b", "a/", "a/b@1@2", "a/b@1.0+x"])
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises((ConfigError, EnvironmentLoadError), match=r"OWNER/NAME|is no name|version"):
        HubId.parse(text)


def test_errors_of_the_connection_are_one_line_and_name_the_hub(hub: Any, capsys: Capture) -> None:
    from whet.hub.client.settings import HubSettings

    write_settings(HubSettings(hub="http://127.0.0.1:9"))
    assert "http://127.0.0.1:9 cannot be reached" in said(capsys, "whoami", code=2)
    write_settings(HubSettings(hub=f"{hub.address}/elsewhere"))
    assert "no such path" in said(capsys, "whoami", code=2)
    save_token(hub.address, "whet_" + "x" * 43)
    assert f"whet login --hub {hub.address}" in said(capsys, "whoami", "--hub", hub.address, code=2)


def test_a_version_is_the_newest_without_a_number(user: str, hub: Any, packages: Any) -> None:
    for version in ("1.0.0", "1.2.0", "2.0.0rc1"):
        assert hub.push(user, user, packages.Wheel(version=version)).status_code == 201
    with HubClient(hub.address, hub.tokens[user]) as connection:
        assert find_version(connection, HubId(user, "word-game")).version == "1.2.0"
        assert find_version(connection, HubId(user, "word-game", "2.0.0rc1")).version == "2.0.0rc1"
        with pytest.raises(HubRequestError, match=r"3\.0"):
            find_version(connection, HubId(user, "word-game", "3.0"))


def test_settings_of_the_machine_are_shown_and_changed(capsys: Capture) -> None:
    said(capsys, "config", "set", "owner", "my-team")
    said(capsys, "config", "set", "hub", "hub.example.com")
    shown = answered(capsys, "config", "show")
    assert (shown["hub"], shown["owner"]) == ("https://hub.example.com", "my-team")
    said(capsys, "config", "unset", "owner")
    assert answered(capsys, "config", "show")["owner"] is None
    assert "is no name for an owner" in said(capsys, "config", "set", "owner", "My Team", code=2)
