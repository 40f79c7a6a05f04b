"""Training on a Ray cluster of two nodes on one machine, with real actors and real kills.

1. An engine whose node is killed is started on another: the run goes on, each group is trained once.
2. So is an engine's process, or its actor.
3. Nothing outlives a run that was killed.

Rewards are those of a run on this machine alone: test_workers_on_cluster.py, and with ranks test_ranks_on_cluster.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.rl.storage.records import Ledger

pytestmark = [pytest.mark.parts, pytest.mark.timeout(600)]
GROUPS_OF_A_STEP = 4


def wait_for(condition: Callable[[], Any], run: Any) -> Any:
    while not (found := condition()):
        assert run.process.poll() is None, run.output
        time.sleep(0.05)
    return found


def processes(text: bytes) -> list[int]:
    """Those of this machine with `text` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def actors(name: str) -> list[int]:
    return processes(f"ray::{name}".encode())


@pytest.mark.long
def test_an_engine_of_a_killed_node_comes_back_on_one_that_joins_later(cluster: Any, train: Any) -> None:
    node, _ = cluster.add(num_cpus=4)
    run = train(
        *("--deployment.ray_address", cluster.address, "--deployment.threads", "4", "--max_async_level", "1"),
        *("--inference.servers", "2", "--max_steps", "500"),
    )
    try:
        wait_for(lambda: len(run.steps()) >= 1, run)
        assert hosted_by(node), "each has two of the threads, and the other nodes have room for one engine"
    finally:
        cluster.kill(node)
    later, _ = cluster.add(num_cpus=2)
    try:
        wait_for(lambda: (last := run.steps()[-1])["engine/restarts"] >= 1 and last["engine/healthy"] == 2, run)
        assert hosted_by(later)
        run.process.send_signal(signal.SIGINT)
        run.process.wait()
    finally:
        cluster.kill(later)
    run.check_ledger(len(run.steps()) * GROUPS_OF_A_STEP)


def test_a_killed_engine_is_replaced_with_the_latest_weights_and_nothing_outlives_a_run_that_is_killed(
    cluster: Any, train: Any
) -> None:
    run = train(
        *("--deployment.ray_address", cluster.address, "--max_steps", "500"),
        *("--max_async_level", "1", "--inference.servers", "2"),
    )
    wait_for(lambda: len(run.steps()) >= 1, run)
    os.kill(actors("EngineHost")[0], signal.SIGKILL)
    wait_for(lambda: run.steps()[-1]["engine/restarts"] == 1 and run.steps()[-1]["engine/healthy"] == 2, run)
    started = actors("EngineHost")
    children = [pid for pid in processes(b"multiprocessing.spawn") if parent(pid) in started]
    assert len(started) == len(children) == 2
    run.process.kill()
    run.process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in [*started, *children]):
        time.sleep(0.05)
    rows, trained = run.steps(), len(Ledger(run.directory / "ledger.jsonl").steps)
    assert trained - len(rows) in (0, 1)  # it may have been killed between the two
    run.check_ledger(trained * GROUPS_OF_A_STEP)
    back = rows[-1]
    assert all(back[f"engine/{name}/version"] >= back["step"] - 1 for name in (1, 2))
    assert all(row.get("policy/kl_engine", 0.0) < 1e-6 for row in rows)


def hosted_by(node: Any) -> list[int]:
    """The actors of engines on a node."""
    raylet = node.all_processes["raylet"][0].process.pid
    return [pid for pid in actors("EngineHost") if parent(pid) == raylet]


def parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
