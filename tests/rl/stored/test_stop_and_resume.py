"""`whet train stop` and `resume`, with real processes: who is sent a signal, and what becomes of the run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunError
from whet.records.lock import DirectoryLock
from whet.rl.stored.stored_run import open_run, stop_run
from whet.system.files import read_lines

CONFIG = """
model = "whet/tiny"
max_steps = 1000
batch_size = 8
rollouts_per_example = 4
[sampling]
max_tokens = 8
[[env]]
id = "reverse-text"
[eval]
before = false
after = false
[deployment]
threads = 1
"""
Whet = Callable[..., tuple[int, str, str]]


@pytest.fixture
def running(warm: Any, tmp_path: Path) -> Callable[[], tuple[Any, Path]]:
    """Starts a long run and waits for its first step: (process, run directory)."""
    config = tmp_path / "long.toml"
    config.write_text(CONFIG)

    def start() -> tuple[Any, Path]:
        process = warm.start("train", "run", config, "--runs_directory", tmp_path / "runs")
        assert any(line.startswith("step 1/") for line in process.stdout)
        return process, tmp_path / "runs" / "long"

    return start


def test_a_run_is_stopped_with_a_checkpoint_and_goes_on_from_it(running: Any, whet: Whet) -> None:
    process, run = running()
    assert json.loads(whet("train", "list", run.parent, "--json")[1])["runs"][0]["state"] == "running"
    code, out, _ = whet("train", "stop", run, "--json")
    stopped = json.loads(out)
    assert (code, stopped["state"]) == (0, "interrupted")
    assert stopped["checkpoint"] == stopped["step"] >= 1
    assert stopped["resume"] == f"whet train resume {run}"
    process.communicate()
    assert process.returncode == 130

    last = stopped["step"] + 1
    code, out, _ = whet("train", "resume", run, "--max_steps", last, "--json")
    assert (code, json.loads(out)["step"]) == (0, last)
    assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == list(range(1, last + 1))


def test_a_run_that_was_killed_died_and_cannot_be_stopped_any_more(running: Any, whet: Whet) -> None:
    process, run = running()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads(whet("train", "list", run.parent, "--json")[1])["runs"][0]["state"] == "died"
    code, out, err = whet("train", "stop", run)
    assert (code, out) == (2, "")
    assert "is not running: its state is died" in err


def test_no_signal_is_sent_to_a_process_that_only_has_the_number(whole: Path, tmp_path: Path) -> None:
    """The lock is held by this process; the status names it too, but a process that began at another time."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_bytes((whole / "config.toml").read_bytes())
    (run / "status.json").write_text(
        json.dumps({"state": "running", "step": 1, "pid": os.getpid(), "process_began": "another time"})
    )
    lock = DirectoryLock(run)
    try:
        with pytest.raises(RunError, match="none is sent a signal"):
            stop_run(open_run(run), patience=0)
    finally:
        lock.release()
