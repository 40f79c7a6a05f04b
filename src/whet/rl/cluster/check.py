"""What a config would do on a cluster: where each part would go, and what is missing there. `whet cluster check`.

`survey` looks at a Ray cluster in a process of its own: Ray's client waits without limit for a cluster that is gone.

survey(address) ──▶ python -m whet.rl.cluster.check ADDRESS ──▶ a task on each node
                ◀── JSON: nodes and their versions, or what is wrong
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import socket
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import whet
from whet.errors import ConfigError, MissingExtraError, WhetError
from whet.rl.cluster.nodes import (
    AUTO,
    LOCAL,
    ClusterBundle,
    ClusterFacts,
    ClusterNode,
    bundles,
    differences,
    fit,
    lacking,
    lines,
)
from whet.rl.config import RunConfig
from whet.rl.placement import Placement


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """A cluster, and a config on it where one was given."""

    cluster: ClusterFacts
    placed: tuple[tuple[ClusterBundle, str | None], ...]
    """Each part of the run, and the address of a node that has room for it."""
    missing: tuple[str, ...]
    """A line each; with none of them the run would begin."""

    def lines(self) -> list[str]:
        """For people."""
        report = lines(self.cluster)
        if self.placed:
            width = max(len(bundle.part) for bundle, _ in self.placed)
            report += ["where a run would have room (Ray decides when it begins):", "  run: this machine"]
            report += [
                f"  {bundle.part:<{width}}  {bundle.describe()}: {node or 'nowhere'}" for bundle, node in self.placed
            ]
        return [*report, *(f"missing: {line}" for line in self.missing)]


def check_cluster(address: str, config: RunConfig | None = None, placed: Placement | None = None) -> ClusterCheck:
    """Look at a cluster, for a config and its placement where there is one. Raises `WhetError` where it cannot."""
    facts = survey(address, None if config is None else config.inference.python)
    if config is None or placed is None:
        return ClusterCheck(facts, (), tuple(differences(facts)))
    wanted = bundles(config, placed, next((node.address for node in facts.nodes if node.is_here), ""))
    where = fit(wanted, facts.nodes)
    missing = [*differences(facts), *lacking(wanted, facts.nodes), *_without_vllm(config, facts)]
    return ClusterCheck(facts, tuple((bundle, where[bundle.part]) for bundle in wanted), tuple(missing))


def missing_on_cluster(config: RunConfig, placed: Placement) -> list[str]:
    """What the run needs and the cluster of `ray_address` lacks, a line each."""
    assert config.deployment.ray_address is not None
    try:
        return list(check_cluster(config.deployment.ray_address, config, placed).missing)
    except WhetError as error:
        return [str(error)]


def _without_vllm(config: RunConfig, facts: ClusterFacts) -> list[str]:
    if config.engine != "vllm" or config.inference.base_url:
        return []
    without = [node.address for node in facts.nodes if not node.vllm and not node.problem]
    if not without:
        return []
    return [
        f"no vLLM on {', '.join(without)}: Ray may start a server on any node. Install it there (pip install "
        "'whet[vllm]'), or name its Python in inference.python or WHET_VLLM_PYTHON."
    ]


WITHIN_S = 60.0
"""Seconds for all of it."""
NODES_WITHIN_S = 30.0
"""Seconds for the nodes to answer, all at once."""
CONNECTS_WITHIN_S = 5.0
SPELLINGS = f'"{AUTO}" (the cluster of this machine), "{LOCAL}" (one of this machine alone, for the run) or host:6379'


def need_ray() -> None:
    """Raise `MissingExtraError` where Ray is not installed; does not import it."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("a run on a Ray cluster", "ray")


def check_address(address: str) -> None:
    """Raise `ConfigError` for what is no address of a cluster."""
    if address in (LOCAL, AUTO):
        return
    if "://" in address:
        raise ConfigError(
            f"ray_address = {address!r}: a run is on a node of its cluster, without Ray's client. Start it there, with "
            f'"{AUTO}".'
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"ray_address = {address!r} is no address of a Ray cluster. Use {SPELLINGS}.")
    if host in ("localhost", "127.0.0.1", "[::1]"):
        raise ConfigError(
            f"ray_address = {address!r}: Ray takes the address of a network interface in its place. Use the one that "
            f'`ray start` printed, or "{AUTO}".'
        )


def check_reachable(address: str) -> None:
    """Raise `ConfigError` where nothing listens at `host:port`. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTS_WITHIN_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address}: {error.strerror or error}. Start one with `ray start --head`, or "
            f"use {SPELLINGS}."
        ) from None


def survey(address: str, python: Path | None = None) -> ClusterFacts:
    """What the cluster at `address` has. Nothing is started; for `local` only this machine is looked at.

    `python` is `[inference] python`, in which vLLM is looked for on each node. Raises `ConfigError` where the cluster
    does not answer in time, or refuses.
    """
    need_ray()
    check_address(address)
    if address == LOCAL:
        return ClusterFacts(LOCAL, (_this_machine(python),))
    if address != AUTO:
        check_reachable(address)
    try:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, address, *([] if python is None else [str(python)])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=WITHIN_S,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"the Ray cluster {address} did not answer within {WITHIN_S:g} s. See `ray status --address {address}`; "
            "use the address that `ray start` printed."
        ) from None
    answer: dict[str, Any] = (
        json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"error": "its client ended without a word"}
    )
    if "error" in answer:
        raise ConfigError(f"the Ray cluster {address} cannot be used: {answer['error']}")
    return ClusterFacts(answer["address"], tuple(ClusterNode(**node) for node in answer["nodes"]))


def versions() -> dict[str, str]:
    """What is compared between nodes, of this process."""
    libraries = {name: _version(name) for name in ("ray", "torch")}
    return {"python": platform.python_version(), "whet": whet.__version__, **libraries}


def look(python: str | None) -> dict[str, Any]:
    """The task on a node: its versions. `python` is `[inference] python`."""
    return {"versions": versions(), "vllm": _vllm(python)}


def _this_machine(python: Path | None) -> ClusterNode:
    """As a node of a local cluster."""
    from whet.inference.devices import visible_gpus

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = look(None if python is None else str(python))
    return ClusterNode("localhost", cores, len(visible_gpus()), memory, is_here=True, **facts)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _vllm(python: str | None) -> str:
    from whet.inference.vllm.interpreter import find_vllm

    try:
        return find_vllm(None if python is None else Path(python)).version
    except WhetError:
        return ""


def _look_at_all(address: str, python: str | None) -> dict[str, Any]:
    """In the process of its own."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    tasks = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(python)
        for node in alive
    ]
    ready = set(ray.wait(tasks, num_returns=len(tasks), timeout=NODES_WITHIN_S)[0])
    nodes = []
    for node, answer in zip(alive, tasks, strict=True):
        fields: dict[str, Any] = {"problem": f"it did not answer within {NODES_WITHIN_S:g} s"}
        if answer in ready:
            try:
                fields = ray.get(answer)
            except ray.exceptions.TaskUnschedulableError:  # it is gone, and not listed as such yet
                continue
            except Exception as error:  # of Ray, or of what is installed on the node
                fields = {"problem": _one_line(error)}
        has = node["Resources"]
        nodes.append(
            ClusterNode(
                node["NodeManagerAddress"],
                has.get("CPU", 0.0),
                has.get("GPU", 0.0),
                int(has.get("memory", 0)),
                node["NodeID"],
                is_here=node["NodeID"] == here,
                **fields,
            )
        )
    facts = {"address": ray.get_runtime_context().gcs_address, "nodes": [asdict(node) for node in nodes]}
    ray.shutdown()
    return facts


def _one_line(error: Exception) -> str:
    """The cause of an error of Ray, which has a traceback of another process in its text."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {' '.join(lines[:3])[:400]}" if lines else type(cause).__name__


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with redirect_stdout(sys.stderr):
        try:
            answer = _look_at_all(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
        except Exception as error:  # whatever it is, it is what the user has to know
            answer = {"error": _one_line(error)}
    print(json.dumps(answer), flush=True)
    os._exit(0)
