"""What a runner announces: the machine's cores, memory and devices, as far as they may be used here."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.system.children import boot_id
from whet.system.gpus import MIB, ask_nvidia

ANSWER_S = 30.0
UNLIMITED = 1 << 60


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
    return Machine(name or socket.gethostname(), boot_id() or "unknown", cores(root), memory(root), devices())


def cores(root: Path = Path("/")) -> float:
    """Cores that this process may run on, or less where its control group has a quota."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for folder in _groups(root, "cpu"):
        words = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us")[:1],
            *_words(folder / "cpu.cfs_period_us")[:1],
        ]
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            count = min(count, int(words[0]) / int(words[1]))
    return count


def memory(root: Path = Path("/")) -> int:
    """Bytes of memory, or less where a control group has a limit."""
    available = UNLIMITED
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            available = int(line.split()[1]) * 1024
    if available == UNLIMITED:  # no Linux
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            if words and words[0].isdigit():
                available = min(available, int(words[0]))
    return available


def devices() -> tuple[Device, ...]:
    """The GPUs that nvidia-smi lists, or those of them that CUDA_VISIBLE_DEVICES leaves."""
    devices = {}
    for index, uuid, kind, memory_mib in ask_nvidia("gpu", "index,uuid,name,memory.total", ANSWER_S):
        if memory_mib.isdigit():
            devices[index] = devices[uuid] = Device(index, kind, int(memory_mib) * MIB)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name for name in devices if name.isdigit()] if visible is None else visible.split(",")
    return tuple(devices[name.strip()] for name in names if name.strip() in devices)


def _groups(root: Path, controller: str) -> list[Path]:
    """The folders of this process's control group and of those above it, of version 2 and of version 1."""
    groups = []
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = [*line.strip().split(":", 2), "", ""][:3]
        if number == "0":
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        below = top / path.lstrip("/")
        groups += [folder for folder in (below, *below.parents) if folder.is_relative_to(top)]
    return groups


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()
