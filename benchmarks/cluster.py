"""What a Ray cluster costs: throughput of workers for environments, and bytes and seconds of new weights.

    python benchmarks/cluster.py [--rollouts 960] [--repetitions 5] [--megabytes 512] [--members 4] [--json]

The cluster is two nodes on this machine, on loopback addresses. Needs `pip install 'whet[ray]'`.

`workers`: groups of rollouts of one turn, whose scoring computes for about 2 ms, by two workers: processes of this
machine, actors on one node, actors on two nodes. The policy is a script in this process, as the model of a run is. The
three take turns; a ratio is that of one turn, rollouts a second on the cluster to those of local processes.

`weights`: one file for `--members` engines on each node, which see no directory of the learner: bytes put into Ray's
object store, bytes written on nodes, and seconds until the last engine has its path, beside a plain copy of the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whet.clients.client import Client
from whet.inference.protocol import WeightUpdate
from whet.rl.cluster.remote_worker import RemoteWorker
from whet.rl.cluster.run_cluster import LOOPBACK, begun_ray, node_agent
from whet.rl.cluster.weight_store import WeightStore
from whet.rl.loop.group_runner import environment_workers
from whet.rl.plan import training_env
from whet.rl.sections.training import TrainingEnvConfig
from whet.rollouts.jobs import RolloutJob, RolloutRecipe
from whet.rollouts.limits import SharedLimit
from whet.rollouts.workers.started import LocalProcess, Starter
from whet.system import cancellation
from whet.types import Response, ResponseMessage, ResponseTokens, Usage

ENVIRONMENT = """
import whet

def reward(completion, **kwargs):
    total = 0
    for number in range(40_000):
        total += number
    return float(total > 0)

def load_environment():
    rows = [{"question": f"Say {i}", "answer": str(i)} for i in range(32)]
    return whet.SingleTurnEnv(dataset=rows, rubric=whet.Rubric(funcs=[reward]))
"""
GROUP, WORKERS, IN_FLIGHT = 8, 2, 64
SECOND = "127.0.0.3"


class Script(Client[None, Any, Any, Any]):
    """Says the same each time, with tokens."""

    def __init__(self) -> None:
        super().__init__(None)

    async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Response:
        message = ResponseMessage("ok", finish_reason="stop", tokens=ResponseTokens([1, 2], [3], [-0.5], [[0, 1]]))
        return Response(id="p", model=model, message=message, usage=Usage(2, 1))


@contextmanager
def two_nodes() -> Iterator[list[str]]:
    """Ray's ids of two nodes, to whose cluster this process is connected."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="whet-ray-", ignore_cleanup_errors=True) as directory:
        node: dict[str, Any] = {"num_cpus": WORKERS, "object_store_memory": 1 << 30}
        head = {**node, "include_dashboard": False, "node_ip_address": LOOPBACK, "temp_dir": directory}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(**node, node_ip_address=SECOND)
            with begun_ray(cluster.address):
                alive = {one["NodeManagerAddress"]: one["NodeID"] for one in ray.nodes() if one["Alive"]}
                yield [alive[LOOPBACK], alive[SECOND]]
        finally:
            cluster.shutdown()


def on(nodes: list[str]) -> Starter:
    """Starts workers on these nodes in turn."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def start(number: int) -> RemoteWorker:
        strategy = NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=False)
        return RemoteWorker(number, LOOPBACK, {"num_cpus": 0, "scheduling_strategy": strategy})

    return start


async def throughput(section: TrainingEnvConfig, start: Starter, rollouts: int) -> float:
    """Rollouts a second, once all workers are ready."""
    env, recipe = training_env(section), RolloutRecipe("m", {"temperature": 1.0}, seed=(0,))
    pool = environment_workers(
        *([section], [env], Script(), recipe, lambda text: print(text, file=sys.stderr)),
        workers=WORKERS,
        max_concurrent=IN_FLIGHT,
        in_order=False,
        start=start,
    )
    limit = SharedLimit().up_to(IN_FLIGHT)
    jobs = [RolloutJob(0, n % len(env.rows), tuple(range(GROUP)), n, 1.0, whole=True) for n in range(rollouts // GROUP)]
    async with pool:
        await asyncio.gather(*(pool.run(job, limit) for job in jobs[: 4 * WORKERS]))  # all have loaded it
        began = time.perf_counter()
        await asyncio.gather(*(pool.run(job, limit) for job in jobs))
        return len(jobs) * GROUP / (time.perf_counter() - began)


def measure_workers(nodes: list[str], rollouts: int, repetitions: int) -> dict[str, Any]:
    sides: dict[str, Starter] = {"local": LocalProcess, "one node": on(nodes[1:]), "two nodes": on(nodes)}
    found: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "whet_benchmark_env.py"
        module.write_text(ENVIRONMENT)
        section = TrainingEnvConfig(id=str(module))
        for _ in range(repetitions):
            for name, start in sides.items():
                found[name].append(cancellation.run(throughput(section, start, rollouts)))
    result: dict[str, Any] = {"per_s": {name: statistics.median(values) for name, values in found.items()}}
    for name in ("one node", "two nodes"):
        ratios = [ours / theirs for ours, theirs in zip(found[name], found["local"], strict=True)]
        result[name] = {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return result


def measure_weights(nodes: list[str], megabytes: int, members: int, repetitions: int) -> dict[str, Any]:
    """Medians of seconds; bytes of one update."""

    async def reach(store: WeightStore, update: WeightUpdate) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(store.on_node(update, node) for node in nodes * members))
        return time.perf_counter() - began

    async def all_updates(folder: Path) -> tuple[list[float], WeightStore]:
        store = WeightStore(folder, node_agent, always_copy=True)
        (folder / "weights-0").write_bytes(b"x")
        await reach(store, WeightUpdate(0, folder / "weights-0", "packed"))  # the agents have started
        store.counts.stored = store.counts.copied = 0
        return [await reach(store, WeightUpdate(n, path, "packed")) for n in range(1, repetitions + 1)], store

    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name) / "weights"
        path.write_bytes(os.urandom(1 << 20) * megabytes)
        seconds, store = asyncio.run(all_updates(Path(name)))
        copies = []
        for _ in range(repetitions):
            began = time.perf_counter()
            shutil.copyfile(path, path.with_name("copy"))
            copies.append(time.perf_counter() - began)
        store.close()
    return {
        "bytes": megabytes << 20,
        "engines": members * len(nodes),
        "stored_bytes": store.counts.stored // repetitions,
        "copied_bytes": store.counts.copied // repetitions,
        "seconds": statistics.median(seconds),
        "copy_s": statistics.median(copies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=960)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with two_nodes() as nodes:
        weights = measure_weights(nodes, options.megabytes, options.members, options.repetitions)
        workers = measure_workers(nodes, options.rollouts, options.repetitions)
    if options.json:
        print(json.dumps({"workers": workers, "weights": weights}))
        return
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in workers["per_s"].items())
    print(f"workers: rollouts a second: {rates}")
    for name in ("one node", "two nodes"):
        ratio = workers[name]
        print(f"  {name} to local: {ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})")
    print(
        f"weights: {weights['bytes'] / 1e6:.0f} MB for {weights['engines']} engines on {len(nodes)} nodes: "
        f"{weights['stored_bytes'] / 1e6:.0f} MB stored, {weights['copied_bytes'] / 1e6:.0f} MB written on nodes, "
        f"{weights['seconds']:.2f} s; one copy of the file {weights['copy_s']:.2f} s"
    )


if __name__ == "__main__":
    main()
