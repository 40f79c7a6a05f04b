"""Which resources the parts of a run ask a cluster for, and whether its nodes have room. Pure.

A bundle is what Ray reserves on one node. The run itself (rollouts, the files) is the driver, and reserves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whet.rl.cluster.nodes import ClusterNode, total
from whet.rl.config import RunConfig
from whet.rl.placement import Placement

RANK = "learner rank "
"""How the names of ranks begin in a placement."""


@dataclass(frozen=True, slots=True)
class ClusterBundle:
    """One part of a run, in an actor of its own."""

    part: str
    """As the placement calls it: `learner rank 1`, `engine 2`, `vLLM server 0`."""
    cpus: int
    gpus: int
    node: str = ""
    """Address of the only node that it may be on; "" where any will do."""

    def resources(self) -> dict[str, float]:
        """As Ray takes them."""
        at = {f"node:{self.node}": 0.001} if self.node else {}
        return {"CPU": float(self.cpus), **({"GPU": float(self.gpus)} if self.gpus else {}), **at}

    def describe(self) -> str:
        """`1 CPU, 2 GPUs`"""
        return ", ".join(f"{n} {kind}{'s' * (n != 1)}" for n, kind in ((self.cpus, "CPU"), (self.gpus, "GPU")) if n)


def bundles(config: RunConfig, placed: Placement, here: str = "") -> list[ClusterBundle]:
    """Those of a run: of each rank of a divided learner, each engine that whet starts, each worker for environments.

    Each reserves a CPU for every thread that it computes with. Rank 0 is on the node of the run, of address `here`.
    """
    engine_threads, learner_threads = config.threads()
    ranks = [part for part in placed.parts if part.role == "learner"] if config.ranks > 1 else []
    parts = [*(part for part in placed.parts if part.role == "engine"), *placed.servers]
    each = max(1, learner_threads // config.ranks)
    first = [ClusterBundle(part.process, each, len(part.gpus), here) for part in ranks[:1]]
    others = [ClusterBundle(part.process, each, len(part.gpus)) for part in ranks[1:]]
    engines = [ClusterBundle(part.process, engine_threads, len(part.gpus)) for part in parts]
    workers = [ClusterBundle(part.process, 1, 0) for part in placed.parts if part.role == "environment"]
    return [*first, *others, *engines, *workers]


def apart(wanted: Sequence[ClusterBundle]) -> list[list[ClusterBundle]]:
    """Bundles by placement group: all ranks in one, which do nothing without each other; every other part in its own.

    Ray moves a group that has lost a node only where there is room for all that it has lost.
    """
    ranks = [bundle for bundle in wanted if bundle.part.startswith(RANK)]
    others = [[bundle] for bundle in wanted if not bundle.part.startswith(RANK)]
    return [ranks, *others] if ranks else others


def fit(wanted: Sequence[ClusterBundle], nodes: Sequence[ClusterNode]) -> dict[str, str | None]:
    """The address of a node for each part, by name; None where no node has room left.

    The largest first, each on the fullest node that has room, as Ray packs them. Ray decides when the run begins, also
    by what others have reserved by then.
    """
    usable = {node.node or node.address: node for node in nodes if not node.problem}  # several may have one address
    room = {name: [node.cpus, node.gpus] for name, node in usable.items()}
    found: dict[str, str | None] = {bundle.part: None for bundle in wanted}
    for bundle in sorted(wanted, key=lambda one: (not one.node, -one.gpus, -one.cpus)):
        names = [name for name, node in usable.items() if bundle.node in ("", node.address)]
        fitting = [name for name in names if room[name][0] >= bundle.cpus and room[name][1] >= bundle.gpus]
        if fitting:
            name = min(fitting, key=lambda name: (room[name][1], room[name][0]))
            room[name][0] -= bundle.cpus
            room[name][1] -= bundle.gpus
            found[bundle.part] = usable[name].address
    return found


def lacking(wanted: Sequence[ClusterBundle], nodes: Sequence[ClusterNode]) -> list[str]:
    """A line where the cluster has no room for all of them."""
    placed = fit(wanted, nodes)
    without = [bundle for bundle in wanted if placed[bundle.part] is None]
    if not without:
        return []
    cpus, gpus = total(nodes)
    first = without[0]
    have = "node has" if len(nodes) == 1 else f"{len(nodes)} nodes have"
    return [
        f"the cluster has no node with room for {first.part} ({first.describe()})"
        f"{f' and {len(without) - 1} more' if len(without) > 1 else ''}: {sum(b.cpus for b in wanted)} CPUs and "
        f"{sum(b.gpus for b in wanted)} GPUs are needed in all, and its {have} {cpus:g} CPUs and "
        f"{gpus:g} GPUs. Add nodes, or ask for less."
    ]
