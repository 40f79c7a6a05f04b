"""The commands on the service where none is set: one line says how to start one; runs of this machine are as before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from whet.cli.main import main
from whet.hub.client.settings import HubSettings, save_token, write_settings

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads the settings of the machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    for name in ("WHET_HUB", "WHET_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


QUICKSTART = str(Path(__file__).parents[3] / "configs" / "rl" / "quickstart.toml")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "submit", QUICKSTART, "-y"],
        ["eval", "submit", "reverse-text", "-y"],
        ["gepa", "submit", "reverse-text", "-m", "whet/tiny", "-y"],
        ["train", "list", "--service"],
        ["train", "restart", "1f2e3d4c5b6a7988"],
        ["train", "delete", "first", "-y"],
        ["train", "distributions", "first"],
        ["train", "usage"],
        ["secret", "list"],
        ["secret", "set", "KEY", "--from-env", "HOME"],
    ],
    ids=" ".join,
)
def test_one_line_says_how_to_start_a_service(words: list[str], capsys: Capture) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "Start one with: whet service up" in printed.err


def test_without_a_login_it_says_how_to_log_in(capsys: Capture) -> None:
    write_settings(HubSettings(hub="http://127.0.0.1:9"))
    assert main(["train", "submit", QUICKSTART, "-y"]) == 2
    assert "Log in with: whet login --hub http://127.0.0.1:9" in capsys.readouterr().err


def test_nothing_is_submitted_without_a_terminal_to_ask_on(capsys: Capture) -> None:
    assert main(["train", "submit", QUICKSTART]) == 2
    assert "Add -y to submit without a question" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["get", "show", "metrics", "logs", "stop", "checkpoints", "progress"])
def test_run_of_this_machine_goes_before_the_service(command: str, home: Path, capsys: Capture) -> None:
    run = home / "runs" / "1f2e3d4c5b6a7988"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "run.log").write_text("")
    (run / "config.toml").write_text('name = "first"\nmodel = "whet/tiny"\nmax_steps = 3\n')
    (run / "status.json").write_text(json.dumps({"state": "finished", "step": 3}))
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    write_settings(HubSettings(hub="http://127.0.0.1:9"))  # nothing listens there
    code = main(["train", command, "1f2e3d4c5b6a7988"])
    printed = capsys.readouterr()
    assert "127.0.0.1" not in printed.err
    assert code == (2 if command == "stop" else 0), printed.err
    for refused, instead in (("delete", "rm -r"), ("restart", "whet train resume")):
        assert main(["train", refused, "1f2e3d4c5b6a7988"]) == 2
        assert f"is a run of this machine, not of the service. For those: {instead}" in capsys.readouterr().err


def test_commands_on_runs_of_this_machine_import_no_client(home: Path) -> None:
    (home / "runs" / "first" / "logs").mkdir(parents=True)
    (home / "runs" / "first" / "logs" / "run.log").write_text("")
    (home / "runs" / "first" / "config.toml").write_text('model = "whet/tiny"\n')
    (home / "runs" / "first" / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    script = """
import sys
from whet.cli.main import main
for words in (["list"], ["metrics", "first"], ["logs", "first"], ["get", "first"], ["--help"]):
    assert main(["train", *words]) == 0, words
found = [name for name in ("httpx", "fastapi", "sqlalchemy", "torch") if name in sys.modules]
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_configs_are_listed_with_what_they_learn_from(home: Path, capsys: Capture) -> None:
    (home / "configs").mkdir()
    (home / "configs" / "a.toml").write_text('model = "m"\nmax_steps = 5\n[[env]]\nid = "gsm8k"\n')
    (home / "configs" / "b.toml").write_text('batch_size = 2\n[data]\npath = "rows.jsonl"\n')
    (home / "configs" / "c.toml").write_text("torn = \n")
    (home / "configs" / "endpoints.toml").write_text("[[endpoint]]\n")
    assert main(["train", "configs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["configs"]
    assert [(row["file"], row["command"], row["learns from"]) for row in rows] == [
        ("configs/a.toml", "train run", "gsm8k"),
        ("configs/b.toml", "train sft", "rows.jsonl"),
        ("configs/c.toml", "", ""),
    ]
    assert "not valid TOML" in rows[2]["problem"]


def test_mistyped_name_is_one_of_this_machine_where_the_service_cannot_be_reached(home: Path, capsys: Capture) -> None:
    (home / "runs" / "first").mkdir(parents=True)
    (home / "runs" / "first" / "config.toml").write_text("")
    write_settings(HubSettings(hub="http://127.0.0.1:9"))
    save_token("http://127.0.0.1:9", "whet_none")
    assert main(["train", "show", "frist"]) == 2
    text = capsys.readouterr().err
    assert "there is no run 'frist': neither here" in text
    assert "cannot be reached" in text
    assert "Did you mean 'first'?" in text
