"""What a runner announces: the machine's cores, memory and devices, as far as they may be used here."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.system.children import boot_id
from whet.system.gpus import MIB, ask_nvidia
from whet.system.memory import control_groups, memory_limit, words_of

ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Device:
    """One that runs may be given."""

    index: str  # as CUDA_VISIBLE_DEVICES names it
    kind: str
    memory: int


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, for the runner's row."""

    host: str
    boot: str
    cores: float
    memory: int
    devices: tuple[Device, ...]

    def capacity(self) -> dict[str, Any]:
        return {
            "cores": self.cores,
            "memory": self.memory,
            "devices": len(self.devices),
            "device_memory": min((one.memory for one in self.devices), default=0),
            "device_kind": self.devices[0].kind if self.devices else "",
        }


def this_machine(name: str | None = None, root: Path = Path("/")) -> Machine:
    """What this process may use; limits of its control group count. `root` is where the system's files begin."""
    return Machine(name or socket.gethostname(), boot_id() or "unknown", cores(root), memory_limit(root), devices())


def cores(root: Path = Path("/")) -> float:
    """Cores that this process may run on, or less where its control group has a quota."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for folder in control_groups(root, "cpu"):
        words = words_of(folder / "cpu.max") or [
            *words_of(folder / "cpu.cfs_quota_us")[:1],
            *words_of(folder / "cpu.cfs_period_us")[:1],
        ]
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            count = min(count, int(words[0]) / int(words[1]))
    return count


def devices() -> tuple[Device, ...]:
    """The GPUs that nvidia-smi lists, or those of them that CUDA_VISIBLE_DEVICES leaves."""
    devices = {}
    for index, uuid, kind, memory_mib in ask_nvidia("gpu", "index,uuid,name,memory.total", ANSWER_S):
        if memory_mib.isdigit():
            devices[index] = devices[uuid] = Device(index, kind, int(memory_mib) * MIB)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name for name in devices if name.isdigit()] if visible is None else visible.split(",")
    return tuple(devices[name.strip()] for name in names if name.strip() in devices)
