"""What a run needs of a machine: cores, bytes of memory, devices. From the dry run's estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whet.inference.architecture import Architecture

MIB = 1 << 20
FIRST_PROCESS, FURTHER_PROCESS = 1024 * MIB, 512 * MIB
"""Python, torch and data of a process; the dry run leaves them out."""
USUAL_CORES = 4
"""Threads of a run that names none, where the machine has as many (`DeploymentConfig.torch_threads`)."""
Needs = dict[str, float]


def needs_of(
    threads: int,
    memory: Mapping[str, int],
    devices: Iterable[str],
    *,
    processes: int,
    largest: Mapping[str, float] | None,
) -> Needs:
    """The needs of a run.

    Args:
        threads: of torch, 0 where the run takes what there is.
        memory: bytes by what they are for, on whatever device that is; empty where it is not known.
        devices: as the config names them; `auto` takes a device where the service's largest runner has one.
        processes: that import torch.
        largest: what that runner has, where it is known.
    """
    has = largest or {}
    cores = threads or min(USUAL_CORES, int(has.get("cores") or 1))
    count = max((_count(one, int(has.get("devices") or 0)) for one in devices), default=0)
    total, own = sum(memory.values()), FIRST_PROCESS + (processes - 1) * FURTHER_PROCESS
    return {
        "cores": cores,
        "memory": own if count else own + total,
        "devices": count,
        "device_memory": total if count else 0,
    }


def changed_needs(needs: Needs, wanted: Needs) -> Needs:
    """The needs with what a user says instead. Without a device all memory is the machine's."""
    found = {**needs, **wanted}
    if not found["devices"] and "memory" not in wanted:
        found["memory"] += found["device_memory"]
    return found if found["devices"] else {**found, "device_memory": 0}


def _count(device: str, there: int) -> int:
    """How many devices there have to be for this one: `cuda:1` is the second."""
    kind, _, index = device.partition(":")
    if kind == "auto":
        return min(1, there)
    return 0 if kind == "cpu" else int(index or 0) + 1


def sampling_memory(arch: Architecture, parameters: int, tokens: int, dtype: str) -> dict[str, int]:
    """Of a model that answers, with so many tokens in flight."""
    width = 2 if dtype == "bfloat16" else 4
    return {"weights": parameters * width, "KV cache": tokens * arch.kv_values_per_token * width}
