"""What may happen to worker processes and their environments in a run: it continues, or ends with one message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.parts


def test_a_task_that_ends_every_worker_is_an_error_and_is_replaced(
    orders: Any, order: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.rollouts.workers.assignment.DEATHS_AT_MOST", 1)
    order("die")
    assert orders.run("dies", 2).state == "finished"
    errors = (orders.directory("dies") / "errors.jsonl").read_text().splitlines()
    assert all("WorkerDiedError" in line and "exited with code 7" in line for line in errors)
    assert errors
    trained = orders.trained("dies")
    assert len(set(trained)) == len(trained) == 12


WATCHDOG = """
[watchdog]
report_seconds = 1
act_seconds = 10
first_seconds = 10
act_factor = 1
"""


def test_code_that_keeps_a_worker_for_ever_is_ended_at_the_deadline_of_its_group(
    orders: Any, order: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.rollouts.workers.pool.PATIENCE_S", 0.5)
    monkeypatch.setattr("whet.rollouts.workers.pool.CANCEL_S", 0.5)
    order("block")
    assert orders.run("blocked", 2, steps=2, more=WATCHDOG).state == "finished"
    assert "kept its event loop and did not hear that a group was cancelled; it is replaced" in orders.log("blocked")
    assert "RolloutTimeoutError" in (orders.directory("blocked") / "errors.jsonl").read_text()


def test_rows_that_cannot_be_sent_are_named(orders: Any, order: Callable[[str], None]) -> None:
    order("odd rows")
    outcome = orders.run("unsent", 2)
    assert outcome.state == "failed"
    assert "has a column 'checker' that cannot be sent to a worker process" in outcome.message
    assert "workers_per_env = 1" in outcome.message


def workers_of(pid: int) -> set[int]:
    """Processes that this one has started to run environments."""
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            if b"whet.rollouts.workers" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.add(child)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize(("name", "number"), [("killed", signal.SIGKILL), ("stopped", signal.SIGINT)])
def test_no_worker_is_left_when_a_run_is_killed_or_stopped(orders: Any, name: str, number: signal.Signals) -> None:
    path = orders.config(name, 2, steps=1000)
    command = [sys.executable, "-m", "whet.cli.main", "train", "run", str(path)]
    run = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in a background job
    )
    try:
        ledger = orders.directory(name) / "ledger.jsonl"
        until(lambda: ledger.exists() and bool(ledger.read_text()))
        workers = workers_of(run.pid)
        assert len(workers) == 2
        run.send_signal(number)
        run.wait(60)
        until(lambda: not any(map(alive, workers)))
    finally:
        run.kill()
        run.wait()


def test_a_run_whose_workers_are_killed_from_outside_finishes_with_each_group_once(orders: Any) -> None:
    path = orders.config("shot", 2, steps=12)
    command = [sys.executable, "-m", "whet.cli.main", "train", "run", str(path), "--json"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        ledger = orders.directory("shot") / "ledger.jsonl"
        for line in (1, 3, 6):
            until(lambda line=line: ledger.exists() and len(ledger.read_text().splitlines()) >= line)
            for worker in workers_of(run.pid):
                os.kill(worker, signal.SIGKILL)
        assert b'"finished"' in run.communicate(timeout=120)[0]
    finally:
        run.kill()
        run.wait()
    trained = orders.trained("shot")
    assert len(set(trained)) == len(trained) == 48
    assert "killed by SIGKILL" in orders.log("shot")
