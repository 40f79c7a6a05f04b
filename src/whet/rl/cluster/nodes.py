"""What a Ray cluster has: its nodes, what is installed on each, and in what they differ from this machine. Pure.

`survey.py` finds it out; `lines` is for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    found = []
    for node in facts.nodes:
        if node.problem:
            found.append(f"node {node.address}: {node.problem}")
        elif here is not None:
            other = [
                f"{name} {node.versions.get(name) or 'is missing'} (here {here.versions.get(name) or 'it is missing'})"
                for name in COMPARED
                if _minor(name, node.versions.get(name)) != _minor(name, here.versions.get(name))
            ]
            if other:
                found.append(f"node {node.address} differs from this machine: {', '.join(other)}. Install the same.")
    return found


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
