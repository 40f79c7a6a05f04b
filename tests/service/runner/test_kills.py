"""SIGKILL of runners and shims in loops, and runners side by side: each run once, nothing lost, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.rl.data.metrics import without_clock
from whet.service.runner.folders import read_object
from whet.system.children import began
from whet.system.files import read_lines

SCRIPT = Path(__file__).with_name("killable.py")
DEADLINE_S = 900.0
ONCE = 'mkdir -p ../run; echo begun >> ../begun; %s; echo \'{"state": "finished"}\' > ../run/status.json'


class Killable:
    """Runners in processes of their own, on one database and folder."""

    def __init__(self, queue: Any, data: Path) -> None:
        self.queue, self.data = queue, data
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, script: str) -> subprocess.Popen[str]:
        url = self.queue.database.url.render_as_string(hide_password=False)
        command = [sys.executable, str(SCRIPT), str(self.data), url, script]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip()
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()
        self.processes.remove(process)

    def rows(self) -> list[Any]:
        from sqlalchemy import select

        from whet.service.storage.tables import RunRow

        with self.queue.database.read() as session:
            return list(session.scalars(select(RunRow)))

    def until_all_ended(self) -> list[Any]:
        deadline = time.monotonic() + DEADLINE_S
        while any(row.ended_at is None for row in self.rows()):
            assert time.monotonic() < deadline, [(row.state, row.reason) for row in self.rows()]
            time.sleep(0.1)
        return self.rows()

    def identities(self) -> list[dict[str, Any]]:
        return [read_object(path) for path in self.data.glob("runs/*/attempts/*/attempt.json")]

    def begun(self, run: str) -> int:
        return (self.data / "runs" / run / "begun").read_text().count("begun")

    def left_over(self) -> list[dict[str, Any]]:
        """Shims and runs that still live."""
        named = [one for found in self.identities() for one in (found.get("shim"), found.get("run")) if one]
        return [one for one in named if began(one["pid"]) == one["process_began"]]

    def close(self) -> None:
        for process in list(self.processes):
            self.kill(process)
        for one in self.left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one["pid"], signal.SIGKILL)


@pytest.fixture
def killable(queue: Any, tmp_path: Path) -> Iterator[Killable]:
    found = Killable(queue, tmp_path)
    yield found
    found.close()


def until_none_is_left(killable: Killable) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while killable.left_over():
        assert time.monotonic() < deadline, killable.left_over()
        time.sleep(0.05)


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parts
def test_two_runners_start_each_run_once(killable: Killable, count: int) -> None:
    runs = [killable.queue.submit(owner=f"owner-{number % 3}") for number in range(count)]
    for _ in range(2):
        killable.start(ONCE % "true")
    rows = killable.until_all_ended()
    assert {(row.state, row.attempt) for row in rows} == {("finished", 1)}
    assert {run: killable.begun(run) for run in runs} == dict.fromkeys(runs, 1)
    until_none_is_left(killable)


def kill_in_a_loop(kills: int, killable: Killable) -> None:
    rng = random.Random(7)
    runs = [killable.queue.submit() for _ in range(4)]
    script = ONCE % f"for i in $(seq {10 * kills}); do echo $i; sleep 0.1; done"
    runner = killable.start(script)
    for number in range(kills):
        time.sleep(rng.random())  # where in its work it is killed
        killable.kill(runner)
        shims = [one["shim"] for one in killable.identities() if one.get("run") and one.get("shim")]
        for shim in rng.sample(shims, min(len(shims), number % 2)):
            if began(shim["pid"]) == shim["process_began"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(shim["pid"], signal.SIGKILL)
        runner = killable.start(script)
    rows = killable.until_all_ended()
    assert {row.state for row in rows} == {"finished"}
    assert {run: killable.begun(run) for run in runs} == dict.fromkeys(runs, 1)
    until_none_is_left(killable)


@pytest.mark.parts
def test_killed_runners_and_shims_neither_lose_nor_repeat_a_run(killable: Killable) -> None:
    kill_in_a_loop(2, killable)


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_twenty_kills_neither_lose_nor_repeat_a_run(killable: Killable) -> None:
    kill_in_a_loop(20, killable)


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_twenty_kills_of_the_runner_leave_a_training_run_as_it_is(
    killable: Killable, apart: Any, warm: Any, training: Any, tmp_path: Path
) -> None:
    config, files = training
    config = config.replace("max_steps = 3", "max_steps = 60")
    (tmp_path / "mine.toml").write_text(config)
    local = warm.start("train", "run", tmp_path / "mine.toml", "--runs_directory", tmp_path / "local")
    said = local.communicate()
    assert local.returncode == 0, said
    run = killable.queue.submit(config=config, files=files)
    rng, seen = random.Random(3), set()
    for _ in range(20):
        runner = killable.start("whet")
        time.sleep(2 * rng.random())
        seen |= {one["run"]["pid"] for one in killable.identities() if one.get("run")}
        killable.kill(runner)
    killable.start("whet")
    [row] = killable.until_all_ended()
    assert (row.state, row.attempt) == ("finished", 1), row.reason
    assert len(seen) == 1
    folders = (tmp_path / "runs" / run / "run", tmp_path / "local" / "mine")
    submitted, own = ([without_clock(line) for line in read_lines(one / "metrics.jsonl")] for one in folders)
    assert submitted == own
    until_none_is_left(killable)
