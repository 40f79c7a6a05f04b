"""The model that ships with whet can solve each template's tasks sometimes, and gets better with its train.toml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whet.authoring.scaffold import KINDS
from whet.system.files import read_lines

FEWEST_STEPS = {"single": 30, "multi": 6, "tool": 3, "sandbox": 3, "taskset": 3}
"""After so many steps a gain is certain, though not yet the whole of it."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "sandbox":
        request.getfixturevalue("bubblewrap")
    return str(request.param)


def run(warm: Any, folder: Path, *command: str) -> None:
    process = warm.start(*command, cwd=folder)
    output = process.stdout.read()
    assert process.wait() == 0, output


def mean_reward(folder: Path) -> float:
    """Of the evaluation that was made in this folder."""
    (metadata,) = folder.glob("outputs/evals/*/*/metadata.json")
    return float(json.loads(metadata.read_text())["avg_reward"])


def held_out(folder: Path) -> tuple[float, float]:
    """Mean rewards of held-out tasks at temperature 1, before and after the training in this folder."""
    rows = {row["moment"]: row for row in read_lines(folder / "runs/fresh/evals.jsonl") if row["sampling"] != "greedy"}
    assert {row["sampling"] for row in rows.values()} == {"temperature 1"}
    return rows["before"]["reward"], rows["after"]["reward"]


@pytest.mark.parts
def test_the_first_steps_of_its_training_help(kind: str, warm: Any, tmp_path: Path) -> None:
    run(warm, tmp_path, "env", "init", "fresh", "--kind", kind)
    run(warm, tmp_path, "eval", "run", "fresh", "-n", "16")
    assert 0.15 <= mean_reward(tmp_path) <= 0.7
    short = ("--max_steps", str(FEWEST_STEPS[kind]), "--eval.greedy", "false")
    run(warm, tmp_path, "train", "run", "environments/fresh/train.toml", *short)
    before, after = held_out(tmp_path)
    assert 0.15 <= before <= 0.7
    assert after - before >= 0.1


@pytest.mark.long
def test_its_whole_training_gains_a_fifth(kind: str, warm: Any, tmp_path: Path) -> None:
    run(warm, tmp_path, "env", "init", "fresh", "--kind", kind)
    run(warm, tmp_path, "train", "run", "environments/fresh/train.toml")
    before, after = held_out(tmp_path)
    assert 0.15 <= before <= 0.7
    assert after - before >= 0.2
