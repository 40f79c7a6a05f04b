"""Runs that really happened: one that trained all weights, with evaluations, and one with an adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIG = """
model = "whet/tiny"
max_steps = 3
batch_size = 8
rollouts_per_example = 4
learning_rate = 1e-3
[sampling]
max_tokens = 12
[[env]]
id = "reverse-text"
[[env]]
id = "calculator"
[eval]
num_examples = 2
rollouts_per_example = 2
interval = 2
[checkpointing]
save_every_n_steps = 1
[deployment]
threads = 1
"""
Train = Callable[..., Path]


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """`train(name, *overrides)`: a run of that name in a folder of its own, finished; returns its directory."""
    pytest.importorskip("torch")

    def train(name: str, *overrides: str) -> Path:
        from whet.rl.config import load_run_config
        from whet.rl.run import run_training

        folder = tmp_path_factory.mktemp(name)
        file = folder / f"{name}.toml"
        file.write_text(CONFIG)
        config = load_run_config(file, ["--runs_directory", str(folder / "runs"), *overrides])
        outcome = run_training(config, json_output=True)
        assert outcome.state == "finished", outcome
        return config.directory

    return train


@pytest.fixture(scope="session")
def whole(train: Train) -> Path:
    """A run that trained all weights."""
    return train("whole")


@pytest.fixture(scope="session")
def adapted(train: Train) -> Path:
    """A run that trained an adapter."""
    quick = ["--max_steps", "1", "--eval.before", "false", "--eval.after", "false", "--eval.interval", "0"]
    return train("adapted", "--lora.rank", "4", *quick)


@pytest.fixture
def whet(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`whet("train", "list")`: exit code, standard output, standard error."""
    from whet.cli.main import main

    def whet(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return whet
