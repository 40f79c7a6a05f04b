"""The pages about sharing: each command and option that they name is there, and each error reads as it is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from whet.cli.main import main
from whet.errors import WhetError
from whet.rl.config import load_run_config

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = DOCS / "guides"
PAGES = [DOCS / "hub.md", DOCS / "service.md", DOCS / "migrating.md", GUIDES / "share.sh", GUIDES / "service.sh"]
UNKNOWN = {
    ("train", "my.toml"),
    ("env", "publish"),
    ("env", "publish", "word-game"),
}
"""Commands that whet does not have, in errors that are shown."""
Capture = pytest.CaptureFixture[str]


def commands_of(text: str) -> list[list[str]]:
    """The words of each command that begins a line, a span of code or the second part of a pipe."""
    groups = "hub|login|logout|whoami|config|lab|env|eval|train|gepa|view|service|deployments|secret"
    found = re.findall(rf"(?:^\$ |^|`|\| )whet ((?:{groups})\b[^`\n|]*)", text, re.M)
    return [shlex.split(command.partition("<")[0].partition(">")[0], comments=True) for command in found]


def documented() -> list[tuple[str, ...]]:
    found = {tuple(words) for page in PAGES for words in commands_of(page.read_text())}
    return sorted(found - UNKNOWN)


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_command_of_a_page_is_there_with_its_options(words: tuple[str, ...], capsys: Capture) -> None:
    options = [word for word in words if re.fullmatch(r"--?[a-zA-Z][\w-]*", word)]
    command = [word for word in words if re.fullmatch(r"[a-z]+(?:-[a-z]+)*", word)]
    while command and main([*command, "--help"]) != 0:
        command.pop()
    assert command
    text = capsys.readouterr().out
    assert "Commands:" not in text.splitlines() or len(words) == len(command)
    for option in options:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", text), option


def test_errors_of_the_page_are_those_printed(capsys: Capture) -> None:
    [block] = re.findall(r"```console\n(.*?)```", (DOCS / "migrating.md").read_text(), re.S)
    lines = block.splitlines()
    assert len(lines) == 6
    for command, error in zip(lines[::2], lines[1::2], strict=True):
        assert main(shlex.split(command)[2:]) == 2
        assert capsys.readouterr().err.rstrip("\n") == error.rstrip("\n")


SAME = """
model = "whet/tiny"
max_steps = 100
batch_size = 128
rollouts_per_example = 8
learning_rate = 1e-4
lora_alpha = 16
oversampling_factor = 2.0
max_async_level = 2
env_file = ["secrets.env"]

[sampling]
max_tokens = 1024
temperature = 0.7
enable_thinking = false

[[env]]
id = "alice/reverse-text"
name = "first"
args = { size = 10 }

[eval]
interval = 100
num_examples = 10
rollouts_per_example = 1

[[eval.env]]
id = "alice/reverse-text"

[buffer]
online_difficulty_filtering = true
easy_threshold = 0.8
hard_threshold = 0.2
env_ratios = [1.0]

[wandb]
project = "p"
name = "n"
entity = "e"
"""


def test_keys_that_the_page_calls_the_same_are_read(tmp_path: Path) -> None:
    (tmp_path / "secrets.env").write_text("")
    file = tmp_path / "hosted.toml"
    file.write_text(SAME)
    config = load_run_config(file, [])
    assert (config.lora and config.lora.alpha, config.max_async_level, config.env[0].label) == (16, 2, "first")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("trajectory_strategy = 'interleaved'", "trajectory_strategy"),
        ("val = { num_examples = 64 }", "val"),
        ("eval = { eval_base_model = true }", "eval.eval_base_model"),
        ("checkpoints = { interval = 100 }", "checkpoints"),
        ("adapters = { interval = 0 }", "adapters"),
        ("sampling = { min_tokens = 1 }", "sampling.min_tokens"),
        ("sampling = { repetition_penalty = 1.1 }", "sampling.repetition_penalty"),
        ("buffer = { seed = 1 }", "buffer.seed"),
    ],
)
def test_keys_that_the_page_calls_refused_are_refused_by_name(line: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "hosted.toml"
    file.write_text(f'batch_size = 8\nrollouts_per_example = 8\n{line}\n[[env]]\nid = "reverse-text"\n')
    with pytest.raises(WhetError, match=f"'{key}'"):
        load_run_config(file, [])
