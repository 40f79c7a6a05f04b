"""Whole runs whose learner is divided among two ranks: the curves of one process, to rounding."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.inference.weights.model_weights import read_checkpoint
from whet.system.files import read_lines

RUN = """
model = "whet/tiny"
max_steps = 3
batch_size = 8
rollouts_per_example = 4
learning_rate = 3e-4
[sampling]
max_tokens = 12
[[env]]
id = "reverse-text"
[eval]
before = false
after = false
[deployment]
threads = 1
"""
FINE_TUNING = """
model = "whet/tiny"
max_steps = 3
batch_size = 4
learning_rate = 3e-4
[data]
path = "rows.jsonl"
[validation]
fraction = 0.25
interval = 1
[deployment]
threads = 1
"""
SAME = ("reward/mean", "optim/loss", "optim/grad_norm", "policy/entropy", "optim/entropy", "validation/loss")
"""Metrics that both have, and do not depend on the clock."""

Train = Callable[..., Path]


@pytest.fixture
def train(warm: Any, tmp_path: Path) -> Train:
    def run(kind: str, name: str, *options: str) -> Path:
        (tmp_path / "run.toml").write_text(RUN if kind == "run" else FINE_TUNING)
        rows = [{"prompt": f"{number} plus 1 is", "completion": f" {number + 1}"} for number in range(12)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        text = () if kind == "run" else ("--data.text", "true")
        output = warm.run("train", kind, "run.toml", "--name", name, *text, *options, cwd=tmp_path)
        assert ("the learner is divided: rank 0 (cpu" in output) == ("--learner.ranks" in options)
        return tmp_path / "runs" / name

    return run


def curves(run: Path) -> dict[str, list[float]]:
    rows = list(read_lines(run / "metrics.jsonl"))
    return {name: [row[name] for row in rows if name in row] for name in SAME}


def check_same(one: Path, two: Path) -> None:
    found, expected = curves(two), curves(one)
    assert found["optim/loss"]
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-3, abs=1e-6), name


@pytest.mark.parts
@pytest.mark.parametrize("kind", ["run", "sft"])
def test_two_ranks_have_the_curves_and_weights_of_one_process(train: Train, kind: str) -> None:
    one, two = train(kind, "one"), train(kind, "two", "--learner.ranks", "2")
    check_same(one, two)
    weights = [read_checkpoint(run / "model") for run in (one, two)]
    for name, tensor in weights[0].items():
        assert (tensor - weights[1][name]).abs().max() < 1e-3, name
    assert all(row["perf/rank_balance"] >= 1 for row in read_lines(two / "metrics.jsonl") if row["step"])


@pytest.mark.parts
@pytest.mark.parametrize("step", [1, 5])
def test_fine_tuning_that_loses_a_rank_trains_every_row_as_often(
    warm: Any, train: Train, tmp_path: Path, step: int
) -> None:
    options = ("--learner.ranks", "2", "--max_steps", "6", "--checkpointing.save_every_n_steps", "3")
    whole = train("sft", "whole", *options)
    process = warm.start("train", "sft", "run.toml", "--name", "lost", "--data.text", "true", *options, cwd=tmp_path)
    said = next(line for line in process.stdout if line.startswith("the learner is divided: "))
    pid = int(re.findall(r"process (\d+)", said)[1])
    process.after_step(step, lambda: os.kill(pid, signal.SIGKILL))
    assert "(1 of 3 restarts)" in process.finish()
    lost = tmp_path / "runs" / "lost"
    assert (lost / "ledger.jsonl").read_text() == (whole / "ledger.jsonl").read_text()
    assert curves(lost) == curves(whole)


@pytest.mark.parts
def test_two_ranks_train_an_adapter_as_one_process_does(train: Train) -> None:
    adapter = ("--lora.rank", "4")
    check_same(train("run", "one", *adapter), train("run", "two", *adapter, "--learner.ranks", "2"))
