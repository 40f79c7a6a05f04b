"""A Ray cluster whose head is killed under a run: the run ends with one sentence and leaves nothing on nodes."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rl.cluster.conftest import CPUS, TestCluster
from tests.rl.cluster.test_cluster_runs import processes

pytestmark = [pytest.mark.parts, pytest.mark.timeout(600)]


@pytest.fixture
def own_cluster() -> Iterator[TestCluster]:
    """Of this test alone."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with tempfile.TemporaryDirectory(prefix="whet-ray-", ignore_cleanup_errors=True) as directory:
        made = TestCluster(directory)
        try:
            made.add(num_cpus=CPUS[1])
            yield made
        finally:
            made.close()


@pytest.mark.parametrize(
    "options",
    [pytest.param((), marks=pytest.mark.long), ("--learner.ranks", "2")],  # with ranks there are engines too
    ids=["engines", "ranks"],
)
def test_a_run_ends_when_the_head_is_killed(own_cluster: Any, train: Any, options: tuple[str, ...]) -> None:
    run = train("--deployment.ray_address", own_cluster.address, "--max_steps", "500", *options)
    while len(run.steps()) < 2:
        assert run.process.poll() is None, run.output
        time.sleep(0.05)
    hosts = [*processes(b"ray::EngineHost"), *processes(b"ray::RankHost"), *processes(b"ray::NodeAgent")]
    assert hosts
    for pid in own_cluster.head_pids():
        os.kill(pid, signal.SIGKILL)
    assert run.process.wait() == 1, run.output
    assert f"the head of the Ray cluster ({own_cluster.address}) is gone" in run.output
    assert "--resume" in run.output
    assert "Traceback" not in run.output
    while any(Path(f"/proc/{pid}").exists() for pid in hosts):
        time.sleep(0.05)
    assert not [pid for pid in (run.process.pid, *hosts) if list(Path("/dev/shm").glob(f"whet-weights-{pid}-*"))]
