"""A process of a run that lives and does not answer (stopped here by SIGSTOP) ends the run with a word."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QUICK = tuple(
    word
    for key, value in {"report_seconds": 0.5, "act_seconds": 2, "act_factor": 2, "first_seconds": 20}.items()
    for word in (f"--watchdog.{key}", str(value))
)


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
def test_a_child_that_hangs_is_named_and_the_run_ends_and_goes_on(
    make_run: Callable[..., Any],
    processes_of: Callable[[int], list[int]],
    kill: Callable[[int, int], None],
    which: int,
) -> None:
    run = make_run("run", "--max_async_level", "1", "--max_steps", "200", *QUICK)
    process = run.start()
    process.after_step(5, lambda: None)  # there is a checkpoint by then
    children = sorted(processes_of(process.pid)[1:], key=memory, reverse=True)[:2]  # learner and engine
    hung = sorted(children)[which]
    kill(hung, signal.SIGSTOP)
    output = process.communicate()
    kill(hung, signal.SIGKILL)
    assert process.returncode == 1, output
    assert "stalled:" in output
    assert "--resume" in output
    status = json.loads((run.path / "status.json").read_text())
    assert status["state"] == "failed"
    assert "has waited" in status["last_error"]
    assert "the learner's step" in status["last_error"] or "the engine" in status["last_error"]
