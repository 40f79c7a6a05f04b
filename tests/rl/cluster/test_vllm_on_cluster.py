"""A real vLLM server in an actor on a node, behind its relay: weights, requests, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from whet.inference.vllm import guard

pytestmark = [pytest.mark.parts, pytest.mark.long, pytest.mark.timeout(900)]


def servers() -> list[int]:
    """API servers whose guard is a child of an actor."""
    table = {int(entry): guard.process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    found = {pid: one for pid, one in table.items() if one is not None}
    hosts = {pid for pid, one in found.items() if one.name == "ray::EngineHost"}
    guards = {pid for pid, one in found.items() if one.parent in hosts}
    return [pid for pid, one in found.items() if one.parent in guards and one.session == pid]


def test_a_vllm_server_on_a_node_is_trained_with_and_ends_with_a_killed_run(
    cluster: Any, train: Any, vllm_servers: Any
) -> None:
    python = vllm_servers.python()
    run = train(
        *("--deployment.ray_address", cluster.address, "--inference.engine", "vllm", "--max_steps", "50"),
        *("--inference.python", str(python), "--inference.server_args.kv_cache_memory_bytes", "64M"),
        *("--inference.server_args.max_num_seqs", "64"),
    )
    while len(run.steps()) < 2:
        assert run.process.poll() is None, run.output
        time.sleep(0.1)
    assert all(row["policy/kl"] < 1e-6 for row in run.steps())
    [server] = servers()
    found = [server, *guard.members(server)]
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        time.sleep(0.1)
