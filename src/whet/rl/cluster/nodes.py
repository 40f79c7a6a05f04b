"""What a Ray cluster has: its nodes, what is installed on each, and in what they differ from this machine. Pure.

`check.py` finds it out; `lines` is for people.

Which resources the parts of a run ask a cluster for, and whether its nodes have room. Pure.

A bundle is what Ray reserves on one node. The run itself (rollouts, the files) is the driver, and reserves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from whet.rl.config import RunConfig
from whet.rl.placement import Placement

LOCAL, AUTO = "local", "auto"
"""Addresses: a cluster of this machine alone, made for the run; the cluster that this machine belongs to."""
COMPARED = ("python", "ray", "whet", "torch")
"""What has to be of one version on all nodes."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One node that is up."""

    address: str
    """Its IP address, by which Ray and engines on it are reached."""
    cpus: float
    gpus: float
    memory: int
    """Bytes that Ray may give to actors."""
    node: str = ""
    """Ray's id of it."""
    versions: dict[str, str] = field(default_factory=dict)
    """By the names of `COMPARED`; "" for what is not installed there."""
    vllm: str = ""
    """Version of vLLM that servers on it would be of; "" where there is none."""
    problem: str = ""
    """Why it could not be looked at."""
    is_here: bool = False
    """Whether the run itself would be on it."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster as it was found."""

    address: str
    nodes: tuple[ClusterNode, ...]


def differences(facts: ClusterFacts) -> list[str]:
    """A line for each node that was not looked at, or has other versions than the machine of the run."""
    here = next((node for node in facts.nodes if node.is_here), None)
    problems = []
    for node in facts.nodes:
        if node.problem:
            problems.append(f"node {node.address}: {node.problem}")
        elif here is not None:
            other = [
                f"{name} {node.versions.get(name) or 'is missing'} (here {here.versions.get(name) or 'it is missing'})"
                for name in COMPARED
                if _minor(name, node.versions.get(name)) != _minor(name, here.versions.get(name))
            ]
            if other:
                problems.append(f"node {node.address} differs from this machine: {', '.join(other)}. Install the same.")
    return problems


def lines(facts: ClusterFacts) -> list[str]:
    """For people: a heading and a line for each node."""
    number = len(facts.nodes)
    rows = [
        (
            node.address + (" (this machine)" if node.is_here else ""),
            f"{node.cpus:g} CPUs",
            f"{node.gpus:g} GPUs",
            f"{node.memory / 2**30:.1f} GiB",
            node.problem or ", ".join(f"{name} {node.versions.get(name) or 'missing'}" for name in COMPARED),
        )
        for node in facts.nodes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    body = ["  " + "  ".join([*(f"{row[i]:<{widths[i]}}" for i in range(4)), row[4]]).rstrip() for row in rows]
    return [f"cluster {facts.address}: {number} node{'s' * (number != 1)}", *body]


def total(nodes: Sequence[ClusterNode]) -> tuple[float, float]:
    """CPUs and GPUs of all nodes."""
    return sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)


def _minor(name: str, version: str | None) -> str | None:
    """What of a version has to be equal; a build ("+cpu") need not be, nor Python's last number."""
    if not version:
        return version
    public = version.partition("+")[0]
    return ".".join(public.split(".")[:2]) if name == "python" else public


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
    address_of: dict[str, str | None] = {bundle.part: None for bundle in wanted}
    for bundle in sorted(wanted, key=lambda one: (not one.node, -one.gpus, -one.cpus)):
        names = [name for name, node in usable.items() if bundle.node in ("", node.address)]
        fitting = [name for name in names if room[name][0] >= bundle.cpus and room[name][1] >= bundle.gpus]
        if fitting:
            name = min(fitting, key=lambda name: (room[name][1], room[name][0]))
            room[name][0] -= bundle.cpus
            room[name][1] -= bundle.gpus
            address_of[bundle.part] = usable[name].address
    return address_of


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
