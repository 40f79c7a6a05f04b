"""Supervised fine-tuning on one thread is the same run every time, also when it is killed or stopped half-way.

 1. kill -9 in the middle, then --resume: the uninterrupted run, bit for bit: metrics (but for times), ledger, weights.
 2. SIGTERM in the middle: a checkpoint, exit status 130 and the command that resumes; then as 1.
 3. The same as 1 with an adapter and its dropout.

Real processes, real signals, the real tiny model.
"""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.data.metrics import without_clock
from whet.system.files import read_lines

CONFIG = """
name = "run"
num_epochs = 2
batch_size = 4
learning_rate = 1e-3
[data]
path = "rows.jsonl"
[validation]
fraction = 0.2
interval = 2
[optimizer]
schedule = "cosine"
[checkpointing]
save_every_n_steps = 2
[deployment]
threads = 1
"""
STEPS = 8
Start = Callable[..., Any]


@pytest.fixture
def start(warm: Any) -> Start:
    def start(directory: Path, *arguments: str) -> Any:
        directory.mkdir(exist_ok=True)
        (directory / "sft.toml").write_text(CONFIG)
        rows = [{"prompt": f"What is {number} plus 1?", "completion": str(number + 1)} for number in range(20)]
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return warm.start("train", "sft", "sft.toml", *arguments, cwd=directory)

    return start


def record(directory: Path) -> dict[str, object]:
    run = directory / "runs" / "run"
    ends = [path for path in sorted(run.rglob("*.safetensors")) if path.parent.name in ("model", "step_4")]
    return {
        "metrics": [without_clock(row) for row in read_lines(run / "metrics.jsonl")],
        "ledger": (run / "ledger.jsonl").read_text(),
        "weights": {str(path.relative_to(run)): path.read_bytes() for path in ends},
    }


def test_1_2_a_run_killed_or_stopped_and_resumed_is_the_uninterrupted_run(start: Start, tmp_path: Path) -> None:
    start(tmp_path / "whole").finish()
    whole = record(tmp_path / "whole")
    assert len(whole["metrics"]) == STEPS + 1

    killed = start(tmp_path / "killed")
    killed.signal_after_step(5, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    start(tmp_path / "killed", "--resume").finish()
    assert record(tmp_path / "killed") == whole

    stopped = start(tmp_path / "stopped")
    stopped.signal_after_step(3, signal.SIGTERM)
    assert "whet train sft runs/run/config.toml --resume" in stopped.finish(expected=130)
    status = json.loads((tmp_path / "stopped" / "runs" / "run" / "status.json").read_text())
    assert (tmp_path / "stopped" / "runs" / "run" / "checkpoints" / f"step_{status['step']}").is_dir()
    start(tmp_path / "stopped", "--resume").finish()
    assert record(tmp_path / "stopped") == whole


@pytest.mark.parts
def test_3_a_lora_run_with_dropout_killed_and_resumed_is_the_uninterrupted_run(start: Start, tmp_path: Path) -> None:
    adapter = ("--lora.rank", "2", "--lora.dropout", "0.1", "--learning_rate", "1e-2", "--num_epochs", "1")
    start(tmp_path / "whole", *adapter).finish()
    killed = start(tmp_path / "killed", *adapter)
    killed.signal_after_step(3, signal.SIGKILL)
    killed.wait()
    start(tmp_path / "killed", "--resume", *adapter).finish()
    assert record(tmp_path / "killed") == record(tmp_path / "whole")
