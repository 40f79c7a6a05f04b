"""Secrets that an environment puts into everything are in no file of a run, an evaluation or a search."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.system.env_files import SECRETS_FILE

pytestmark = pytest.mark.parts
ENVIRONMENT = Path(__file__).with_name("leaky.py")
CANARIES = {
    "LEAKY_FILE": "canary-of-env-file-0f5e",
    "LEAKY_API_KEY": 'canary-"lemon quartz\\-77aa',
    "LEAKY_SERVICE": "canary-line-one-91c3\ncanary-line-two-91c3",
}
CONFIG = f"""
name = "run"
max_steps = 2
batch_size = 8
rollouts_per_example = 4
env_file = ["{{env_file}}"]
[sampling]
max_tokens = 6
[[env]]
id = "{ENVIRONMENT}"
name = "leaky"
[env.args]
hint = "{CANARIES["LEAKY_FILE"]}"
fails = {{fails}}
[eval]
num_examples = 2
before = false
[checkpointing]
save_every_n_steps = 1
[deployment]
threads = 1
"""
Command = Callable[..., str]


@pytest.fixture
def command(warm: Any, tmp_path: Path) -> Iterator[Command]:
    """`whet` with the three secrets; what it printed."""
    env_file = tmp_path / "secrets.env"
    env_file.write_text(f"LEAKY_FILE={CANARIES['LEAKY_FILE']}\n")

    def run(*arguments: str | Path, expected: int = 0) -> str:
        secrets = tmp_path / "secrets.json"
        secrets.write_text(json.dumps({"LEAKY_SERVICE": CANARIES["LEAKY_SERVICE"]}))
        secrets.chmod(0o600)
        given = {SECRETS_FILE: str(secrets), "LEAKY_API_KEY": CANARIES["LEAKY_API_KEY"]}
        output: str = warm.run(*arguments, expected=expected, env=given, cwd=tmp_path)
        assert not secrets.exists()
        return output

    return run


def forms() -> list[bytes]:
    """Beginnings of the secrets as they would be found, also inside of JSON."""
    return [
        b"canary-of-env-file",
        b'canary-\\"lemon',
        b'canary-"lemon',
        b"lemon quartz",
        b"canary-line-one",
        b"canary-line-two",
    ]


def leaks(folder: Path) -> list[str]:
    found = []
    for directory, _, names in os.walk(folder):
        for path in (Path(directory, name) for name in names):
            content = path.read_bytes()
            found += [f"{path.relative_to(folder)}: {form!r}" for form in forms() if form in content]
    return found


def printed(output: str) -> list[str]:
    return [form.decode() for form in forms() if form.decode() in output]


def config(folder: Path, *, fails: bool) -> Path:
    path = folder / "run.toml"
    path.write_text(CONFIG.format(env_file=folder / "secrets.env", fails=str(fails).lower()))
    return path


def test_secrets_of_an_environment_are_in_no_file_of_a_training_run(command: Command, tmp_path: Path) -> None:
    output = command("train", "run", config(tmp_path, fails=False), "--runs_directory", tmp_path / "runs")
    run = tmp_path / "runs" / "run"
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert leaks(tmp_path / "runs") == []
    assert printed(output) == []
    texts = "".join(path.read_text() for path in run.rglob("*") if path.suffix in (".jsonl", ".log", ".json", ".toml"))
    for name in CANARIES:  # it was there, and is named
        assert f"[{name}]" in texts
    assert (run / "errors.jsonl").stat().st_size


def test_resumed_run_has_no_secrets_either(command: Command, tmp_path: Path) -> None:
    command("train", "run", config(tmp_path, fails=False), "--runs_directory", tmp_path / "runs")
    resumed = command(
        "train",
        "run",
        config(tmp_path, fails=False),
        "--runs_directory",
        tmp_path / "runs",
        "--max_steps",
        "3",
        "--resume",
    )
    assert printed(resumed) == leaks(tmp_path / "runs") == []


def test_secrets_of_an_environment_are_in_no_file_of_a_failed_run(command: Command, tmp_path: Path) -> None:
    output = command("train", "run", config(tmp_path, fails=True), "--runs_directory", tmp_path / "runs", expected=1)
    status = json.loads((tmp_path / "runs" / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "[LEAKY_API_KEY]" in status["last_error"]
    assert leaks(tmp_path / "runs") == []
    assert printed(output) == []


def test_secrets_of_an_environment_are_in_no_file_of_an_evaluation(command: Command, tmp_path: Path) -> None:
    output = command(
        *("eval", "run", ENVIRONMENT, "-m", "whet/tiny", "-n", "3", "-r", "1", "--max-tokens", "6"),
        *("--env-file", tmp_path / "secrets.env", "--output-directory", tmp_path / "outputs"),
        *("--state-columns", "leak", "-a", json.dumps({"hint": CANARIES["LEAKY_FILE"]})),
    )
    results = next((tmp_path / "outputs").rglob("results.jsonl"))
    assert "[LEAKY_SERVICE]" in results.read_text()
    assert leaks(tmp_path / "outputs") == []
    assert printed(output) == []


def test_secrets_of_an_environment_are_in_no_file_of_a_search(command: Command, tmp_path: Path) -> None:
    begun = ("gepa", "run", ENVIRONMENT, "-m", "whet/tiny", "--reflection-model", "whet/tiny", "-n", "2", "-N", "2")
    limits = ("--minibatch-size", "2", "--max-calls", "20", "--max-tokens", "6")
    own = ("--env-file", tmp_path / "secrets.env", "--runs-directory", tmp_path / "runs", "--name", "s")
    output = command(*begun, *limits, *own, expected=1)  # the context of the tiny model is too small to reflect in
    assert "is too small" in output
    assert "[LEAKY_SERVICE]" in (tmp_path / "runs" / "s" / "rollouts" / "results.jsonl").read_text()
    assert leaks(tmp_path / "runs") == []
    assert printed(output) == []
    again = command(
        "gepa", "run", "--resume", tmp_path / "runs" / "s", "--env-file", tmp_path / "secrets.env", expected=1
    )
    assert "other settings" not in again
    assert leaks(tmp_path / "runs") == []
