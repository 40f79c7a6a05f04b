"""Sweeps of real runs: the planted best is found for a third of the grid, and kills lose nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from whet.records.lock import is_locked
from whet.rl.storage.records import Ledger
from whet.rl.stored.stored_run import open_run

pytestmark = [pytest.mark.parts, pytest.mark.timeout(2400)]

ENVIRONMENT = """
import whet

def rows(n):
    return [{"question": f"Say {i}", "answer": "a"} for i in range(n)]

def share(completion, **kwargs):
    return min(1.0, (completion[-1]["content"] or "").count("a") / 8)

def load_environment():
    return whet.SingleTurnEnv(dataset=rows(64), eval_dataset=rows(16), rubric=whet.Rubric(funcs=[share]))
"""
RUN = """
model = "whet/tiny"
batch_size = 16
rollouts_per_example = 8
[algorithm]
advantage = "grpo_std"
[sampling]
max_tokens = 8
[[env]]
id = "./letters.py"
name = "letters"
[eval]
num_examples = 16
before = false
greedy = false
[checkpointing]
save_every_n_steps = 1
[deployment]
threads = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "letters.py").write_text(ENVIRONMENT)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def start(folder: Path, *words: str, config: str = "run.toml") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "whet.cli.main", "train", "sweep", config, *words, "--json"]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)


def finish(folder: Path, *words: str, code: int = 0, config: str = "run.toml") -> dict[str, Any]:
    process = start(folder, *words, config=config)
    said, errors = process.communicate()
    assert process.returncode == code, errors
    result: dict[str, Any] = json.loads(said)
    return result


def test_a_planted_best_is_found_for_a_third_of_the_grids_rollouts(folder: Path) -> None:
    rates = "1e-8,3e-8,1e-7,3e-7,1e-6,3e-3,2e-8,2e-7,2e-6"
    words = ("--vary", f"learning_rate={rates}", "--vary", "max_steps=18", "--method", "asha", "--parallel", "2")
    result = finish(folder, *words)
    best = result["trials"][0]
    assert best["values"] == {"learning_rate": 3e-3}
    assert (best["state"], best["steps"]) == ("finished", 18)
    assert best["score"] > 0.9
    assert result["rollouts"] == sum(one["steps"] * 16 for one in result["trials"])
    assert result["rollouts"] <= 9 * 18 * 16 / 3
    early = [one for one in result["trials"] if one["state"] == "stopped early"]
    assert {one["steps"] for one in early} <= {2, 6}
    assert len(early) >= 6
    run = open_run(folder / best["run"])
    assert (run.state, run.step, run.max_steps) == ("finished", 18, 18)


SFT = """
model = "whet/tiny"
batch_size = 8
max_steps = 9
[data]
path = "rows.jsonl"
text = true
[validation]
fraction = 0.2
[deployment]
threads = 1
"""


def test_a_sweep_of_fine_tuning_goes_by_the_loss_of_rows_that_are_never_trained(folder: Path) -> None:
    rows = [{"prompt": f"{n} and one is ", "completion": f"{n + 1}."} for n in range(40)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sft.toml").write_text(SFT)
    words = ("--vary", "learning_rate=1e-8,1e-7,3e-3,3e-8", "--metric", "validation/loss", "--method", "asha")
    words = (*words, "--rungs", "2", "--parallel", "2")
    result = finish(folder, *words, config="sft.toml")
    best = result["trials"][0]
    assert (best["values"], best["state"], best["steps"]) == ({"learning_rate": 3e-3}, "finished", 9)
    assert (result["counted"], result["rollouts"]) == ("rows", (3 * 3 + 9) * 8)
    assert best["score"] == min(one["score"] for one in result["trials"]) > 0
    run = open_run(folder / best["run"])
    curve = {row["step"]: row["validation/loss"] for row in run.metrics() if "validation/loss" in row}
    assert curve[9] == best["score"] < curve[3] < curve[0]
    ledger = Ledger(folder / best["run"] / "ledger.jsonl").steps
    assert list(ledger) == list(range(1, 10))
    whole = finish(folder, *words[:4], "--name", "whole", "--vary", "learning_rate=3e-3", config="sft.toml")
    assert whole["trials"][0]["score"] == best["score"]  # paused and resumed, it learns what it would have learned


def record(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Scores and rollouts of trials by their values, and which groups each learned from."""
    found = {}
    for one in result["trials"]:
        ledger = Ledger(folder / one["run"] / "ledger.jsonl").steps
        assert list(ledger) == list(range(1, one["steps"] + 1)), one
        found[str(one["values"])] = (one["score"], one["rollouts"], one["state"], ledger)
    return found


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.long)])
def test_kills_lose_nothing_and_do_nothing_twice(count: int, folder: Path) -> None:
    words = ("--vary", "learning_rate=1e-4,1e-3,3e-3", "--vary", "max_steps=8", "--rungs", "2", "--method", "asha")
    whole = record(folder, finish(folder, *words, "--name", "whole"))
    assert sorted(one[1] for one in whole.values()) == [48, 48, 128]
    rng, kills, number = random.Random(0), 0, 0
    while kills < count:
        name = ("--name", f"killed-{number}", "--parallel", str(1 + number % 2))
        number += 1
        for _ in range(5):
            state = folder / "runs" / name[1] / "sweep.json"
            process = start(folder, *words, *name, *(["--resume"] if state.exists() else []))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=rng.uniform(0.5, 14.0))
            if process.poll() is not None:
                assert process.returncode == 0
                break
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
        state = folder / "runs" / name[1] / "sweep.json"
        result = finish(folder, *words, *name, *(["--resume"] if state.exists() else []))
        if name[-1] == "1":  # with two at once the order of scores, and so who goes on, may differ
            assert record(folder, result) == whole
        else:
            assert {values: one[3][1] for values, one in record(folder, result).items()} == {
                values: one[3][1] for values, one in whole.items()
            }
        assert not any(is_locked(path) for path in (folder / "runs").iterdir())


def test_a_budget_ends_a_sweep_and_a_larger_one_continues(folder: Path) -> None:
    words = ("--vary", "learning_rate=1e-4,1e-3", "--vary", "max_steps=2")
    part = finish(folder, *words, "--rollouts", "40")
    assert (part["state"], part["rollouts"], len(part["trials"])) == ("budget used up", 32, 1)
    whole = finish(folder, *words, "--rollouts", "64", "--resume")
    assert (whole["state"], whole["rollouts"], len(whole["trials"])) == ("finished", 64, 2)


def test_a_metric_that_no_evaluation_has_ends_the_sweep_with_those_there_are(folder: Path) -> None:
    process = start(folder, "--vary", "learning_rate=1e-4,1e-3", "--vary", "max_steps=1", "--metric", "lenght")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "--metric = 'lenght' is not what evaluations measure; choose from" in errors
    assert "Traceback" not in errors


def test_a_signal_leaves_checkpoints_and_a_failing_trial_is_named_and_tried_again(folder: Path) -> None:
    words = ("--vary", "learning_rate=1e-4,1e-3", "--vary", "max_steps=4")
    process = start(folder, *words)
    status = folder / "runs" / "run-sweep-0" / "metrics.jsonl"
    while not (status.exists() and status.stat().st_size) and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    said, errors = process.communicate()
    assert process.returncode == 130, errors
    assert json.loads(said)["state"] == "interrupted"
    environment = (folder / "letters.py").read_text()
    (folder / "letters.py").write_text(environment.replace(".count", ".cuont"))
    failed = finish(folder, "--name", "broken", *words, code=1)
    assert [one["state"] for one in failed["trials"]] == ["failed", "failed"]
    assert "cuont" in failed["trials"][0]["note"]
    (folder / "letters.py").write_text(environment)
    done = finish(folder, *words, "--resume")
    assert [one["state"] for one in done["trials"]] == ["finished", "finished"]
