"""`whet` itself: exit codes, error lines, and what it costs to start. Each fault enters through a real command."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from whet import __version__
from whet.cli.main import HELP_WIDTH, app, main
from whet.errors import ModelError, ModelLoadError, TrainingError


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """The exit code of `whet model show` when the room behind it raises `error`."""

    def describe(path: object) -> dict[str, object]:
        raise error

    module = ModuleType("whet.models.local_models")
    module.describe = describe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "whet.models.local_models", module)
    return main([*options, "model", "show"])


@pytest.fixture(autouse=True)
def no_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_DEBUG", "0")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelLoadError("m: no config.json"), 2, "error: m: no config.json.\n"),
        (TrainingError("step 4: the loss is nan"), 1, "error: step 4: the loss is nan.\n"),
        (ModelError("no answer"), 1, "error: ModelError: no answer.\n"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), 1, "error: the disk is full (runs/a).\n"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 1, "error: [Errno 13] Permission denied: 'x'.\n"),
    ],
)
def test_every_kind_of_failure_is_one_line_and_its_exit_code(
    error: Exception, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(error, monkeypatch) == code
    assert capsys.readouterr().err == line


def test_further_lines_of_a_message_are_indented_under_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(ModelLoadError("a\nb"), monkeypatch)
    assert capsys.readouterr().err == "error: a\n       b\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_with(ZeroDivisionError(), monkeypatch)


@pytest.mark.parametrize("arguments", [["--debug"], []])
def test_debugging_shows_where_an_error_came_from(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not arguments:
        monkeypatch.setenv("WHET_DEBUG", "1")
    with pytest.raises(ModelLoadError, match="the model is torn"):
        fail_with(ModelLoadError("the model is torn"), monkeypatch, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "there is no command `whet trian`. Type `whet train`.\n"),
        (["train", "start", "my.toml"], "Type `whet train run my.toml`.\n"),
        (["rl", "models"], "Type `whet train run FILE`.\n"),
        (["inference", "models"], "Type `whet serve MODEL`.\n"),
        (["train", "my.toml"], "Type `whet train run my.toml`.\n"),
        (["train", "my.toml", "--max_steps", "3"], "Type `whet train run my.toml --max_steps 3`.\n"),
        (
            ["eval", "reverse-text", "-n", "3"],
            "Type `whet eval run reverse-text -n 3`, if reverse-text is",
        ),
        (["gepa", "sweep.toml"], "Type `whet gepa run sweep.toml`.\n"),
        (["env", "publish", "word-game"], "Type `whet env push word-game`.\n"),
        (["env", "publish"], "Type `whet env push NAME`.\n"),
        (["env", "download", "alice/word-game"], "Type `whet env pull alice/word-game`.\n"),
        (["prime-rl", "my.toml"], "Type `whet train run my.toml`.\n"),
        (["env", "lst"], "Type `whet env list`.\n"),
        (["env", "bogus"], "`whet env --help` lists the commands.\n"),
        (["model", "show", "--jsno"], "--jsno"),
        (["train", "run"], "CONFIG"),
    ],
)
def test_a_mistyped_command_line_is_one_line_and_exit_code_two(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("message", ["no stop", "a stop.", "a question?"])
def test_an_error_of_one_line_ends_its_sentence(
    message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(ModelError(message), monkeypatch)
    assert capsys.readouterr().err.rstrip("\n")[-1] in ".?"
    fail_with(ModelLoadError(f"{message}:\n  lora.rank: was 4, is 8"), monkeypatch)
    assert capsys.readouterr().err.endswith("\n         lora.rank: was 4, is 8\n")


def every_command() -> Iterator[tuple[str, Any]]:
    """Name and parsed form of each command that is no group."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "list_commands"):
            yield name, command
            return
        for word in command.list_commands(None):
            yield from walk(f"{name} {word}", command.get_command(None, word))

    yield from walk("whet", get_command(app))


def test_every_sentence_of_help_ends_with_a_full_stop() -> None:
    for name, command in every_command():
        for paragraph in command.help.partition("\b")[0].strip().split("\n\n"):
            assert paragraph.endswith("."), f"{name}: {paragraph}"
        for parameter in command.params:
            assert (parameter.help or "").rstrip().endswith("."), f"{name}: {parameter.name}"


def test_help_takes_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    main(["eval", "run", "--help"])
    assert 80 < max(map(len, capsys.readouterr().out.splitlines())) <= HELP_WIDTH


@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_a_group_without_a_command_prints_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.lstrip().startswith("Usage: whet")


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "run"],
        ["eval", "run"],
        ["eval", "list"],
        ["eval", "show"],
        ["eval", "compare"],
        ["eval", "report"],
        ["eval", "export"],
        ["env", "init"],
        ["env", "check"],
        ["env", "install"],
        ["env", "list"],
        ["model", "show"],
    ],
)
def test_every_command_explains_itself_with_examples_and_json(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"whet {' '.join(arguments)} " in out.partition("Examples:")[2]
    assert "--json" in out


def whet(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("whet")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, check=False)


def test_the_installed_command_prints_its_version() -> None:
    done = whet("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"whet {__version__}\n", "")


def test_the_installed_command_ends_a_mistake_without_a_traceback(tmp_path: Path) -> None:
    done = whet("train", "run", str(tmp_path / "none.toml"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_the_shell_can_complete_commands() -> None:
    done = whet(_WHET_COMPLETE="complete_bash", COMP_WORDS="whet mo", COMP_CWORD="1")
    assert done.stdout.split() == ["model"]


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["train", "run", "--help"], ["eval", "run", "--help"], ["env", "init", "--help"]],
)
def test_help_and_version_load_no_heavy_library(arguments: list[str]) -> None:
    code = (
        "import sys; from whet.cli.main import main; main(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'numpy', 'openai'} & set(sys.modules); sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
