"""Workers for environments on the nodes of a Ray cluster: a run's rewards, and what is done about a killed one."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.rl.cluster.remote_worker import SECRET_BYTES, RemoteWorker
from whet.rl.cluster.run_cluster import begun_ray
from whet.rollouts.workers.started import BOOT

pytestmark = [pytest.mark.parts, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def room(cluster: Any) -> Iterator[Any]:
    """The cluster, with a third node of three CPUs."""
    node, _ = cluster.add(num_cpus=3)
    yield cluster
    cluster.kill(node)


def processes(word: bytes) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for_step(number: int, run: Any) -> None:
    while len(run.steps()) < number:
        assert run.process.poll() is None, run.output
        time.sleep(0.05)


def test_workers_on_nodes_give_the_rewards_of_one_process_also_when_one_is_killed(
    room: Any, train: Any, alone: list[float]
) -> None:
    run = train("--deployment.ray_address", room.address, "--workers_per_env", "2", "--max_steps", "4")
    wait_for_step(1, run)
    hosts = processes(b"ray::EnvironmentHost")
    assert len(hosts) == 4
    os.kill(hosts[0], signal.SIGKILL)
    rows = run.finish()
    assert [row["reward/mean"] for row in rows] == pytest.approx(alone, abs=0.02)
    assert all(row["policy/kl"] < 1e-6 for row in rows)
    run.check_ledger(16)
    assert not processes(b"ray::EnvironmentHost.run")


@pytest.mark.long
def test_workers_end_with_a_run_that_is_killed(room: Any, train: Any) -> None:
    before = set(processes(BOOT.encode()))
    run = train("--deployment.ray_address", room.address, "--workers_per_env", "2", "--max_steps", "50")
    wait_for_step(1, run)
    workers = set(processes(BOOT.encode())) - before
    assert len(workers) == 4
    run.process.kill()
    run.process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        time.sleep(0.05)


def test_a_stranger_that_connects_is_sent_nothing_and_the_worker_still_comes(cluster: Any) -> None:
    with begun_ray(cluster.address):
        worker = RemoteWorker(0, "127.0.0.2", {"num_cpus": 0})
        with socket.create_connection(worker._listening.getsockname()) as stranger:
            stranger.sendall(bytes(SECRET_BYTES))
            assert stranger.recv(1) == b""
        worker.socket.sendall((0).to_bytes(4))  # no orders: it ends
        assert worker.wait(60)
        assert worker.fate == "exited with code 0"
        worker.close()
