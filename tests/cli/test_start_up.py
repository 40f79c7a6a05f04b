"""What commands say before torch is imported: mistakes that need no model, and a first line about what is loaded.

Each command runs in a new process in which importing torch ends the process with a message.
"""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys

def refuse_torch(event, arguments):
    if event == "import" and arguments[0] == "torch":
        print("torch is imported", file=sys.stderr, flush=True)
        os._exit(70)

sys.addaudithook(refuse_torch)
from whet.cli.main import main
for command in sys.argv[1:]:
    print(f"status {main(command.split())}", file=sys.stderr)
"""
ROOT = Path(__file__).parents[2]
RUN = 'model = "whet/tiny"\nmax_steps = 1\nbatch_size = 4\nrollouts_per_example = 2\n[[env]]\nid = "reverse-text"\n'
SFT = 'model = "whet/tiny"\nmax_steps = 1\n[data]\npath = "rows.jsonl"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "environments").symlink_to(ROOT / "environments")
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "sft.toml").write_text(SFT)
    (tmp_path / "no-file.toml").write_text('env_file = ["nothing.env"]\n' + RUN)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    return tmp_path


def lines_of(folder: Path, *commands: str) -> list[str]:
    """What the commands print on standard error, one after the other in one new process."""
    process = subprocess.run([sys.executable, "-c", SCRIPT, *commands], cwd=folder, capture_output=True, text=True)
    return process.stderr.splitlines()


MISTAKES = {
    "train run run.toml --name taken": "runs/taken already exists",
    "train run run.toml --model ./nothing": "there is no model directory './nothing'",
    "train run run.toml --model ./runs/taken": "runs/taken is not a model directory",
    "train run no-file.toml": "env_file nothing.env: No such file",
    "train run run.toml --resume": "runs/run is not a run",
    "train run run.toml --algorithm.loss nothing:loss": "[algorithm] loss: 'nothing:loss' cannot be imported",
    "train run run.toml --algorithm.kl_coef 0.1 --algorithm.reference ./nothing": "reference: there is no",
    "train run run.toml --lora.path ./nothing": "[lora] path: there is no adapter directory './nothing'",
    "train sft sft.toml --name taken": "runs/taken already exists",
    "train sft sft.toml --model ./nothing": "there is no model directory './nothing'",
    "train sft sft.toml --data.path nothing.jsonl": "nothing.jsonl: there is no such file",
    "eval run reverse-text -m ./nothing": "there is no model directory './nothing'",
    "eval run reverse-text --env-file nothing.env": "env_file nothing.env: No such file",
    "gepa run wordle -m ./nothing": "there is no model directory './nothing'",
    "gepa run wordle --name taken": "runs/taken already exists",
    "gepa run wordle --env-file nothing.env": "env_file nothing.env: No such file",
    "serve ./nothing": "there is no model directory './nothing'",
}


def test_mistakes_that_need_no_model_are_reported_without_torch(folder: Path) -> None:
    lines = iter(lines_of(folder, *MISTAKES))
    for command, message in MISTAKES.items():
        line = next(lines, "nothing was printed")
        assert line.startswith(f"error: {message}"), f"{command}: {line}"
        assert next(lines) == "status 2", command
    assert list(lines) == []


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("train run run.toml", "run: loading whet/tiny, reverse-text"),
        ("train sft sft.toml", "sft: loading whet/tiny, rows.jsonl"),
        ("eval run reverse-text", "loading reverse-text, whet/tiny"),
        ("gepa run wordle --seed-prompt Play", "loading wordle, whet/tiny"),
        ("serve --port 0", "loading whet/tiny"),
    ],
)
def test_the_first_line_comes_before_torch(command: str, line: str, folder: Path) -> None:
    lines = lines_of(folder, command)
    assert lines[0] == line
    assert lines[-1] == "torch is imported"
