"""A synchronous run on one thread is the same run every time, also when it is killed or stopped half-way.

 1. Two runs with the same seed: identical metrics (but for times), rollouts, ledger and weights; also where engine and
    learner take turns on a device (`[deployment] colocate`).
 2. kill -9 in the middle, then --resume: the uninterrupted run, bit for bit.
 3. Ctrl-C in the middle: a checkpoint, exit status 130 and the command that resumes; then as 2.
 4. The same with a LoRA adapter.
 5. Every token of a batch was sampled by the weights that the learner had before the step.
 6. Resuming with another config is refused and names each value that differs.
 7. The directory of another run is left as it is.

Real processes, real signals, the real tiny model.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.data.metrics import without_clock
from whet.rollouts.token_rows import read_rollouts
from whet.system.files import read_lines

CONFIG = """
name = "run"
model = "whet/tiny"
max_steps = 6
batch_size = 8
rollouts_per_example = 4
learning_rate = 3e-4
[sampling]
max_tokens = 12
[[env]]
id = "reverse-text"
[[env]]
id = "calculator"
weight = 0.5
[eval]
num_examples = 2
interval = 4
[checkpointing]
save_every_n_steps = 2
[deployment]
threads = 1
"""
WHET = Path(sys.executable).with_name("whet")


Start = Callable[..., Any]


def arguments_for(directory: Path) -> list[str]:
    directory.mkdir(exist_ok=True)
    config = directory / "config.toml"
    config.write_text(CONFIG)
    return ["train", "run", str(config), "--runs_directory", str(directory / "runs")]


@pytest.fixture
def start(warm: Any) -> Start:
    """Starts a run in a directory, in a process of its own (`tests/warm.py`)."""
    return lambda directory, *arguments: warm.start(*arguments_for(directory), *arguments)


def record(directory: Path) -> dict[str, object]:
    """Everything a run leaves that must not depend on the clock."""
    run = directory / "runs" / "run"
    return {
        "metrics": [without_clock(row) for row in read_lines(run / "metrics.jsonl")],
        "evals": list(read_lines(run / "evals.jsonl")),
        "ledger": (run / "ledger.jsonl").read_text(),
        "rollouts": {path.name: list(read_rollouts(path)) for path in sorted((run / "rollouts").glob("*.jsonl"))},
        "weights": {
            path.name: path.read_bytes()
            for path in sorted(run.rglob("*.safetensors"))
            if path.parent.name in ("model", "step_6")
        },
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """From nothing, as a user starts it; so the others show that a warm start changes nothing."""
    directory = tmp_path_factory.mktemp("whole")
    command = [str(WHET), *arguments_for(directory)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=200)
    found = record(directory)
    assert len(found["metrics"]) == 6
    return found


def test_1_two_runs_with_the_same_seed_are_identical(
    start: Start, uninterrupted: dict[str, object], tmp_path: Path
) -> None:
    start(tmp_path).finish()
    assert record(tmp_path) == uninterrupted


@pytest.mark.parts
def test_1_a_run_whose_engine_and_learner_take_turns_on_a_device_is_the_same_also_killed_and_resumed(
    start: Start, uninterrupted: dict[str, object], tmp_path: Path
) -> None:
    colocated = ("--deployment.colocate", "true")
    process = start(tmp_path, *colocated)
    process.signal_after_step(3, signal.SIGKILL)
    process.wait()
    start(tmp_path, *colocated, "--resume").finish()
    assert record(tmp_path) == uninterrupted
    slept = [row["engine/slept_bytes"] for row in read_lines(tmp_path / "runs" / "run" / "metrics.jsonl")]
    assert len(slept) == 6
    assert min(slept) > 3_000_000


def test_1_another_seed_is_another_run(start: Start, uninterrupted: dict[str, object], tmp_path: Path) -> None:
    start(tmp_path, "--seed", "1", "--max_steps", "1").finish()
    assert record(tmp_path)["metrics"][0] != uninterrupted["metrics"][0]


def test_2_a_run_killed_and_resumed_is_the_uninterrupted_run(
    start: Start, uninterrupted: dict[str, object], tmp_path: Path
) -> None:
    process = start(tmp_path)
    process.signal_after_step(3, signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    start(tmp_path, "--resume").finish()
    assert record(tmp_path) == uninterrupted


@pytest.mark.parts
def test_3_a_run_stopped_by_ctrl_c_is_saved_and_resumed(
    start: Start, uninterrupted: dict[str, object], tmp_path: Path
) -> None:
    process = start(tmp_path)
    process.signal_after_step(3, signal.SIGINT)
    output = process.finish(expected=130)
    assert "--resume" in output
    status = json.loads((tmp_path / "runs" / "run" / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert (tmp_path / "runs" / "run" / "checkpoints" / f"step_{status['step']}").is_dir()
    start(tmp_path, "--resume").finish()
    assert record(tmp_path) == uninterrupted


@pytest.mark.parts
def test_4_a_lora_run_killed_and_resumed_is_the_uninterrupted_run(start: Start, tmp_path: Path) -> None:
    adapter = ("--lora.rank", "4", "--learning_rate", "3e-3")
    start(tmp_path / "whole", *adapter).finish()
    process = start(tmp_path / "killed", *adapter)
    process.signal_after_step(3, signal.SIGKILL)
    process.wait()
    start(tmp_path / "killed", "--resume", *adapter).finish()
    assert record(tmp_path / "killed") == record(tmp_path / "whole")


def test_5_every_token_is_of_the_weights_before_the_step(uninterrupted: dict[str, object]) -> None:
    for step in range(1, 7):
        rows = uninterrupted["rollouts"][f"step_{step:06}.jsonl"]
        turns = [turn for row in rows for turn in row["turns"]]
        assert {version for turn in turns for version, _ in turn["policy_version"]} == {step - 1}


def test_6_resuming_with_another_config_reports_what_differs(start: Start, tmp_path: Path) -> None:
    start(tmp_path, "--max_steps", "1").finish()
    output = start(tmp_path, "--resume", "--learning_rate", "1e-3", "--env.0.weight", "3").finish(expected=2)
    assert "learning_rate: was 0.0003, is 0.001" in output
    assert "env.0.weight: was 1.0, is 3" in output


def test_7_an_existing_run_directory_is_not_overwritten(start: Start, tmp_path: Path) -> None:
    (tmp_path / "runs" / "run").mkdir(parents=True)
    assert "--resume" in start(tmp_path).finish(expected=2)
    assert list((tmp_path / "runs" / "run").iterdir()) == []
