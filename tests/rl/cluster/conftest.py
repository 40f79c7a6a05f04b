"""A Ray cluster of two nodes on this machine, on loopback addresses alone, and runs on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.rl.storage.records import Ledger
from whet.system.files import read_lines

NODE = {"object_store_memory": 100 << 20}
CPUS = (1, 3)
"""Of the two nodes; the first one is that of the run."""
CONFIG = """
name = "run"
model = "whet/tiny"
max_steps = 3
batch_size = 16
rollouts_per_example = 4
learning_rate = 3e-4
[sampling]
max_tokens = 24
[[env]]
id = "reverse-text"
[[env]]
id = "calculator"
weight = 0.5
[eval]
num_examples = 4
after = false
[checkpointing]
save_every_n_steps = 1
[inference]
engine = "embedded"
[deployment]
threads = 1
"""
Train = Callable[..., "ClusterRun"]


class TestCluster:
    """Nodes have the addresses 127.0.0.2, 127.0.0.3, ...: Ray takes another in the place of 127.0.0.1."""

    __test__ = False

    def __init__(self, directory: str) -> None:
        from ray.cluster_utils import Cluster

        head = {
            **NODE,
            "num_cpus": CPUS[0],
            "include_dashboard": False,
            "node_ip_address": "127.0.0.2",
            "temp_dir": directory,
        }
        Path("/tmp/ray").mkdir(exist_ok=True)  # Ray keeps the newest address there
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = 1
        self.address: str = self._cluster.address

    def add(self, **options: Any) -> Any:
        """A node, and its address."""
        self._nodes += 1
        address = f"127.0.0.{self._nodes + 1}"
        return self._cluster.add_node(**{**NODE, "node_ip_address": address, **options}), address

    def kill(self, node: Any) -> None:
        """Its raylet, at once, and what it has started."""
        self._cluster.remove_node(node, allow_graceful=False)

    def head_pids(self) -> list[int]:
        """Of all that Ray runs on the head's node."""
        started = self._cluster.head_node.all_processes.values()
        return [one.process.pid for several in started for one in several]

    def close(self) -> None:
        self._cluster.shutdown()


class ClusterRun:
    """`whet train run` in a process of its own."""

    def __init__(self, directory: Path, *options: str, **environment: str) -> None:
        self.directory = directory / "runs" / "run"
        config = directory / "config.toml"
        config.write_text(CONFIG)
        command = ["train", "run", str(config), "--runs_directory", str(directory / "runs"), *options]
        self._log = directory / "output"
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "whet.cli.main", *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def steps(self) -> list[dict[str, Any]]:
        path = self.directory / "metrics.jsonl"
        return list(read_lines(path)) if path.is_file() else []

    def finish(self) -> list[dict[str, Any]]:
        """Its metrics, once it has ended well."""
        assert self.process.wait() == 0, self.output
        return self.steps()

    def check_ledger(self, groups: int) -> None:
        """Each group was trained once."""
        trained = Counter(one for step in Ledger(self.directory / "ledger.jsonl").steps.values() for one in step)
        assert len(trained) == groups
        assert set(trained.values()) == {1}


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="whet-ray-", ignore_cleanup_errors=True) as directory:
        made = TestCluster(directory)
        try:
            made.add(num_cpus=CPUS[1])
            yield made
        finally:
            made.close()


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    """Starts a run, which is ended with the test."""
    started: list[ClusterRun] = []

    def run(*options: str, directory: str = "a", **environment: str) -> ClusterRun:
        (tmp_path / directory).mkdir()
        started.append(ClusterRun(tmp_path / directory, *options, **environment))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The mean rewards of a run without a cluster, of four steps."""
    run = ClusterRun(tmp_path_factory.mktemp("alone"), "--inference.engine", "embedded", "--max_steps", "4")
    return [row["reward/mean"] for row in run.finish()]


@pytest.fixture
def whet_json() -> Callable[..., tuple[int, Any, str]]:
    """Runs a command: its exit code, what it printed as JSON, and its errors."""

    def run(*arguments: str) -> tuple[int, Any, str]:
        done = subprocess.run([sys.executable, "-m", "whet.cli.main", *arguments], capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None, done.stderr

    return run
