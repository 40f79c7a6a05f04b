"""What a run's processes use of this machine, its GPUs too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whet.dashboard.data.machine import ProcessUse
from whet.records.lock import DirectoryLock
from whet.system.children import began, this_process

from ..conftest import Browser, Runs

MIB = 1 << 20
NVIDIA = """#!/bin/sh
case "$1" in
*compute-apps*) echo "GPU-a, {pid}, 2048"; echo "GPU-b, 1, 7" ;;
*) printf 'GPU-a, 0, Fast, 87, 3000, 81920\\nGPU-b, 1, Slow, [N/A], 10, 40960\\n' ;;
esac
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two, of which this process computes on the first."""
    program = tmp_path / "programs" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA.format(pid=os.getpid()))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_gpus_of_the_processes_and_those_that_the_run_was_given(gpus: None) -> None:
    since = began(os.getpid())
    if since is None or not Path("/proc/self/stat").exists():
        pytest.skip("processes are looked for in /proc, which is not here")
    used = ProcessUse().of(os.getpid(), since)
    assert used is not None
    first = {"index": "0", "name": "Fast", "busy": 0.87, "memory": 2048 * MIB, "total": 81920 * MIB}
    assert used["gpus"] == [first]
    given = ProcessUse().of(os.getpid(), since, ("1",))
    assert given is not None
    second = {"index": "1", "name": "Slow", "busy": None, "memory": 10 * MIB, "total": 40960 * MIB}
    assert given["gpus"] == [first, second]
    assert ProcessUse().of(os.getpid(), "another time") is None


def test_a_running_runs_page_has_a_meter_for_each(gpus: None, runs: Runs, browser: Browser) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are looked for in /proc, which is not here")
    metrics = [{"step": 1, "reward/mean": 0.5, "reward/reverse-text/mean": 0.5}]
    run = runs.training(metrics=metrics, state="running", ended=None, **this_process())
    lock = DirectoryLock(run)
    try:
        page = browser.http.get(f"/runs/{browser.id('mine')}").text
    finally:
        lock.release()
    assert 'aria-label="GPU 0 Fast"' in page
    assert "87% busy" in page
    assert "GPU 1" not in page
