"""Asynchronous training: real processes, real signals, the real tiny model.

1. Every step trains exactly `batch_size` rollouts in whole groups; no group is trained twice.
2. No token is older than `max_off_policy_steps`, and none is younger than the weights that learned from it.
3. kill -9, then --resume: the ledger is whole, no group is trained twice, and what was in flight is not lost.
4. When the run is killed its engine and its learner end too. A learner that is killed starts again from the checkpoint,
   in the same run, so often as `max_restarts` says; after that, and when the engine is killed, the run ends with one
   line that says so, and it can be resumed.
5. Ctrl-C: a checkpoint, exit status 130, and nothing left running.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.storage.records import Ledger
from whet.rollouts.token_rows import read_rollouts
from whet.system.files import read_lines

CONFIG = """
name = "run"
model = "whet/tiny"
max_steps = 6
batch_size = 16
rollouts_per_example = 4
learning_rate = 3e-4
max_async_level = 2
max_off_policy_steps = 3
oversampling_factor = 1.5
[sampling]
max_tokens = 12
[[env]]
id = "reverse-text"
[[env]]
id = "calculator"
weight = 0.5
[eval]
num_examples = 2
before = false
after = false
[checkpointing]
save_every_n_steps = 2
[deployment]
threads = 1
"""
Start = Callable[..., Any]


@pytest.fixture
def start(warm: Any, tmp_path: Path) -> Start:
    """Starts a run in this test's directory, in a process of its own."""
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    return lambda *arguments: warm.start("train", "run", config, "--runs_directory", tmp_path / "runs", *arguments)


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name_end = (text := stat.read_text()).rindex(")")
        except (OSError, ValueError):
            continue
        if int(text[name_end + 2 :].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def parts_of(pid: int) -> dict[str, int]:
    """The children that hold the engine and the learner: those with the most memory, the engine begun first."""

    def pages(child: int) -> int:
        return int(Path(f"/proc/{child}/statm").read_text().split()[1])

    def began(child: int) -> int:
        return int(Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[19])

    largest = sorted(children_of(pid), key=pages)[-2:]
    return dict(zip(("engine", "learner"), sorted(largest, key=lambda child: (began(child), child)), strict=True))


def gone(pid: int) -> bool:
    for _ in range(5000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def check_whole(run: Path, steps: int) -> None:
    """Contract 1 and 2, from what the run wrote."""
    ledger = Ledger(run / "ledger.jsonl").steps
    assert list(ledger) == list(range(1, steps + 1))
    trained = [group for groups in ledger.values() for group in groups]
    assert len(set(trained)) == len(trained)
    for step in ledger:
        rows = list(read_rollouts(run / "rollouts" / f"step_{step:06}.jsonl"))
        assert Counter(row["group"] for row in rows) == dict.fromkeys(ledger[step], 4)
        versions = {run_of[0] for row in rows for turn in row["turns"] for run_of in turn["policy_version"]}
        assert max(versions) <= step - 1
        assert step - 1 - min(versions) <= 3
    metrics = list(read_lines(run / "metrics.jsonl"))
    assert [row["step"] for row in metrics] == list(range(1, steps + 1))


@pytest.mark.parametrize("apart", ["true", "false"])
def test_1_2_batches_are_whole_trained_once_and_not_too_old(start: Start, tmp_path: Path, apart: str) -> None:
    start("--deployment.engine_process", apart).finish()
    run = tmp_path / "runs" / "run"
    check_whole(run, 6)
    assert any(row["staleness/max"] > 0 for row in read_lines(run / "metrics.jsonl"))
    mix = Counter(row["environment"] for path in run.glob("rollouts/step_*") for row in read_lines(path))
    assert mix == {"reverse-text": 64, "calculator": 32}


def test_3_4_resume_after_sigkill_loses_and_repeats_no_group(start: Start, tmp_path: Path) -> None:
    process = start()
    parts = {}

    def kill() -> None:
        parts.update(parts_of(process.pid))
        process.send_signal(signal.SIGKILL)

    process.after_step(3, kill)
    process.wait()
    assert all(gone(pid) for pid in parts.values())
    start("--resume").finish()
    run = tmp_path / "runs" / "run"
    check_whole(run, 6)
    trained = sorted(int(group) for groups in Ledger(run / "ledger.jsonl").steps.values() for group in groups)
    # Every group that was drawn is trained or still pending: 24 of the first 24 + (2 + 1.5) * 4 draws, and none is
    # skipped but those in flight at the end.
    state = json.loads((run / "checkpoints" / "step_6" / "curriculum.json").read_text())
    assert sorted(trained + [task[0] for task in state["pending"]]) == list(range(len(trained) + len(state["pending"])))


@pytest.mark.parts
@pytest.mark.parametrize(
    ("part", "options", "says"),
    [
        ("engine", (), "the engine's process ended"),
        ("learner", ("--learner.max_restarts", "0"), "was killed by SIGKILL in: "),
    ],
)
def test_4_a_killed_part_ends_the_run_which_can_be_resumed(
    start: Start, tmp_path: Path, part: str, options: tuple[str, ...], says: str
) -> None:
    process = start(*options)
    process.after_step(3, lambda: os.kill(parts_of(process.pid)[part], signal.SIGKILL))
    output = process.finish(expected=1)
    assert says in output
    assert "--resume" in output
    start("--resume").finish()
    check_whole(tmp_path / "runs" / "run", 6)


@pytest.mark.parts
def test_4_a_killed_learner_starts_again_from_the_checkpoint_in_the_same_run(start: Start, tmp_path: Path) -> None:
    process = start()
    process.after_step(3, lambda: os.kill(parts_of(process.pid)["learner"], signal.SIGKILL))
    output = process.finish()
    assert "The learner starts again from the checkpoint of step" in output
    assert "(1 of 3 restarts)" in output
    check_whole(tmp_path / "runs" / "run", 6)


@pytest.mark.parts
def test_5_ctrl_c_saves_and_leaves_nothing_running(start: Start, tmp_path: Path) -> None:
    process = start()
    parts = {}

    def interrupt() -> None:
        parts.update(parts_of(process.pid))
        process.send_signal(signal.SIGINT)

    process.after_step(3, interrupt)
    assert "--resume" in process.finish(expected=130)
    assert all(gone(pid) for pid in parts.values())
    status = json.loads((tmp_path / "runs" / "run" / "status.json").read_text())
    assert (tmp_path / "runs" / "run" / "checkpoints" / f"step_{status['step']}").is_dir()
    start("--resume").finish()
    check_whole(tmp_path / "runs" / "run", 6)
