"""`whet env`: what is printed, what a program reads, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whet.authoring import install
from whet.authoring.review import check
from whet.authoring.review.findings import Finding, Report
from whet.cli import env
from whet.cli.main import main


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_init_prints_the_files_and_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "init", "word-game", "--kind", "multi"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "made environments/word_game/"
    assert "  tests/test_word_game.py" in lines
    assert lines[lines.index("next:") + 1] == "  whet eval run word-game -n 4"


def test_init_tells_a_program_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "init", "word-game", "--path", "here", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["id"], made["kind"], made["folder"]) == ("word-game", "single", "here/word_game")
    assert made["commands"][-1] == "whet env check here/word_game"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["init", "Word Game"], "For example: word-game"),
        (["init", "game", "--kind", "double"], "'single', 'multi'"),
        (["check", "no-such-environment"], "is not installed"),
        (["check", "calculator", "-a", "[1]"], "--env-args: expected a JSON object"),
        (["check", "calculator", "-n", "0"], "at least one task"),
        (["install", "./nowhere"], "nowhere does not exist"),
        (["install", "two words"], "neither a path nor a package's name"),
        (["install", "word-game", "-e"], "is not a folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def reviewed(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> list[tuple[object, ...]]:
    """Stands in for the room; the list holds what it was asked for."""
    asked: list[tuple[object, ...]] = []

    def check_environment(environment: str, args: dict[str, object], **options: object) -> Report:
        asked.append((environment, args, options))
        facts = {
            "rollouts": 9,
            "seconds_per_rollout": 0.001,
            "mean_rewards": {"right answer, plain": 1.0, "nothing": 0.0},
        }
        return Report(environment, "/somewhere", findings, facts)

    monkeypatch.setattr(check, "check_environment", check_environment)
    return asked


def test_every_option_of_a_check_reaches_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = reviewed(monkeypatch)
    assert main(["env", "check", "e", "-a", '{"size": 3}', "-n", "7", "--timeout", "9", "--no-sandbox"]) == 0
    assert asked == [("e", {"size": 3}, {"tasks": 7, "timeout_s": 9.0, "sandbox": False})]


def test_a_check_prints_each_finding_with_what_to_do_and_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reviewed(monkeypatch, Finding.of("no-licence", "there is none", "Add one.", where="pyproject.toml"))
    assert main(["env", "check", "e"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "warning no-licence  pyproject.toml",
        "        there is none",
        "        Add one.",
        "tried     9 rollouts of scripted models, 1.0 ms each",
        "rewards   right answer, plain 1.00; everything else 0",
        "e: 0 errors, 1 warning",
    ]


def test_an_error_is_exit_code_one_also_for_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reviewed(monkeypatch, Finding.of("load-fails", "it \x1b[31mraises"))
    assert main(["env", "check", "e"]) == 1
    assert "\x1b" not in capsys.readouterr().out
    assert main(["env", "check", "e", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["ok"], data["findings"][0]["code"], data["facts"]["rollouts"]) == (False, "load-fails", 9)


def test_an_installation_says_what_came_with_it_and_what_was_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = install.Installed(
        "old-env", "0.3", "/here", True, ("helper 1.5",), ("verifiers>=0.1.8",), ("old-env from file:///there",)
    )
    monkeypatch.setattr(env, "install_from_anywhere", lambda target, editable, hub: done)
    assert main(["env", "install", "./old_env", "-e"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "installed old-env 0.3 (editable, /here)",
        "  with helper 1.5",
        "  without verifiers>=0.1.8: whet replaces it",
        "  instead of the editable install of old-env from file:///there; edits there count no more (again: -e FOLDER)",
    ]


def test_info_of_an_environment_that_is_here_reaches_no_hub(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WHET_HUB", "http://127.0.0.1:9")
    assert main(["env", "init", "word-game"]) == 0
    capsys.readouterr()
    for name in ("calculator", "Calculator"):
        assert main(["env", "info", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["id"], found["where"]) == ("calculator", "installed")
        assert "whet" in found["requires"]
        assert found["from"].startswith("calculator ")
    assert main(["env", "info", "word_game"]) == 0
    assert "environments/word_game" in capsys.readouterr().out
    assert main(["env", "info", "no-such-game"]) == 2


def test_list_has_what_is_installed_and_what_lies_here(capsys: pytest.CaptureFixture[str]) -> None:
    main(["env", "init", "word-game"])
    capsys.readouterr()
    for name, project in (("deep", f"x = {'[' * 100_000}"), ("odd", "project = 3")):
        Path(f"environments/{name}").mkdir()
        Path(f"environments/{name}/pyproject.toml").write_text(project)
    assert main(["env", "list", "--json"]) == 0
    found = {row["id"]: row for row in json.loads(capsys.readouterr().out)["environments"]}
    assert found["word-game"]["where"] == "environments/word_game"
    assert found["calculator"]["where"] == "installed"
    assert found["calculator"]["description"].startswith("Answer sums")
    assert "whet" not in found
    assert found["deep"]["description"] == found["odd"]["description"] == "its pyproject.toml cannot be read"
