"""What a run has in memory, phase by phase: `memory/*` of its metrics, beside what its plan said."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path

from whet.rl.memory import RUN
from whet.rl.storage.weight_directory import IN_MEMORY
from whet.system.children import family
from whet.system.memory import PeakMemory, common_bytes, own_memory

MIB = 1 << 20


class RunMemory:
    """Peaks between two marks of the loop. Names of metrics are those of docs/training.md; all are in MiB."""

    def __init__(self) -> None:
        self.published: Path | None = None
        """Where weights are published: what is there is memory, also where no process has it mapped."""
        self._peaks, self._whole, self._rows = PeakMemory(), 0.0, dict[str, float]()
        self._fresh = own_memory(os.getpid()) < RUN

    def said(self, sizes: Mapping[str, int]) -> None:
        """What the plan says, in bytes, by the names of `memory.by_process`; {} where it is not known.

        Nothing is kept in a process that holds more than a run has for itself, such as a notebook: a plan says nothing
        of that, so there is nothing to compare.
        """
        if not sizes or not self._fresh:
            return
        for name, size in {
            **{f"said_{name}": size for name, size in sizes.items()},
            "said": sum(sizes.values()),
        }.items():
            self._keep(name, size)

    def poll(self) -> None:
        """As `PeakMemory.poll`."""
        self._peaks.poll()

    def mark(self, phase: str) -> None:
        """The end of a phase: since the last mark, whatever there was at the peak counts for it."""
        held = self._peaks.take()
        roles = {pid: _role(child.name) for child in active_children() if child.pid for pid in family(child.pid)}
        used: dict[str, int] = defaultdict(int)
        for pid, one in held.items():
            used["main" if pid == os.getpid() else roles.get(pid, "others")] += one.own
        used["shared"] = common_bytes(held.values(), _bytes_in_memory(self.published))
        for name, size in {**used, phase: sum(used.values())}.items():
            self._keep(name, size)
        self._whole = max(self._whole, self._rows[f"memory/{phase}_mib"])
        if (device := _device_peak()) is not None:
            self._keep("device", device)

    def metrics(self) -> dict[str, float]:
        """Of a step: the phases that ended since the last call."""
        rows, self._rows = self._rows, {}
        return {**rows, "memory/peak_mib": self._whole}

    def _keep(self, name: str, size: int) -> None:
        key = f"memory/{name}_mib"
        self._rows[key] = max(size / MIB, self._rows.get(key, 0.0))


def _role(name: str) -> str:
    """Of a process that a run starts, by its name: `whet engine`, `whet learner`, `whet rank 0`."""
    if name.startswith(("whet learner", "whet rank")):
        return "learner"
    return "engine" if name == "whet engine" else "others"


def _bytes_in_memory(directory: Path | None) -> int:
    """Of the files there, where they are in memory."""
    size = 0
    if directory is not None and directory.is_relative_to(IN_MEMORY):
        for path in directory.rglob("*"):
            with suppress(OSError):  # it was deleted in this moment
                size += path.stat().st_blocks * 512
    return size


def _device_peak() -> int | None:
    """Most bytes that torch reserved on a CUDA device of this process since the last call; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    peaks = []
    for device in range(torch.cuda.device_count()):
        peaks.append(int(torch.cuda.max_memory_reserved(device)))
        torch.cuda.reset_peak_memory_stats(device)
    return max(peaks)
