"""What the processes of a run use of this machine: cores and memory, from /proc, and GPUs, from nvidia-smi."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from whet.system.children import began, family
from whet.system.gpus import MIB, ask_nvidia

MOST_SHOWN = 20
MOST_KEPT = 256
GPU_SECONDS = 2.0
"""How old what is known of the GPUs may be; nvidia-smi takes a part of a second."""
ANSWER_SECONDS = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Process(NamedTuple):
    id: int
    name: str
    ticks: int  # of processor time
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class _Gpu:
    index: str
    name: str
    busy: float | None  # share of the time in which it computed
    used: int  # bytes, of all processes
    memory: int
    by_process: dict[int, int]


class GpuUse:
    """Looks at the GPUs, now and then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._newest: list[_Gpu] = []

    def of(self, pids: Collection[int], own: Collection[str]) -> list[dict[str, Any]]:
        """What is used of the devices that are a run's `own`, and what its processes use of others."""
        with self._lock:
            if time.monotonic() - self._looked > GPU_SECONDS:
                self._newest, self._looked = _gpus(), time.monotonic()
            gpus = self._newest
        shown = []
        for gpu in gpus:
            used = [memory for pid, memory in gpu.by_process.items() if pid in pids]
            if gpu.index in own or used:
                memory = gpu.used if gpu.index in own else sum(used)
                total = {"memory": memory, "total": gpu.memory}
                shown.append({"index": gpu.index, "name": gpu.name, "busy": gpu.busy, **total})
        return shown


def _gpus() -> list[_Gpu]:
    by_uuid = {}
    for uuid, index, name, busy, used, memory in ask_nvidia(
        "gpu", "uuid,index,name,utilization.gpu,memory.used,memory.total", ANSWER_SECONDS
    ):
        if used.isdigit() and memory.isdigit() and int(memory):
            share = int(busy) / 100 if busy.isdigit() else None
            by_uuid[uuid] = _Gpu(index, name, share, int(used) * MIB, int(memory) * MIB, {})
    if by_uuid:
        for uuid, pid, used in ask_nvidia("compute-apps", "gpu_uuid,pid,used_gpu_memory", ANSWER_SECONDS):
            if uuid in by_uuid and pid.isdigit():
                by_uuid[uuid].by_process[int(pid)] = int(used) * MIB if used.isdigit() else 0
    return list(by_uuid.values())


class ProcessUse:
    """Looks at a process and those that it started. Cores are those used since the look before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpus = GpuUse()
        self._before: OrderedDict[tuple[int, str], tuple[float, dict[int, int]]] = OrderedDict()

    def of(self, pid: int, since: str, devices: Collection[str] = ()) -> dict[str, Any] | None:
        """What a process uses; None where it is not on this machine any more.

        Args:
            since: when the process began, because ids are reused.
            devices: GPUs that it alone was given, by their indexes.
        """
        if not Path("/proc/self/stat").exists() or began(pid) != since:
            return None
        processes = [one for id in family(pid) if (one := _read(id)) is not None]
        now = time.monotonic()
        with self._lock:
            before = self._before.get((pid, since))
            self._before[pid, since] = now, {one.id: one.ticks for one in processes}
            self._before.move_to_end((pid, since))
            while len(self._before) > MOST_KEPT:
                self._before.popitem(last=False)
        shown: list[dict[str, Any]] = []
        for one in processes:
            cores = None
            if before is not None and one.id in before[1] and now > before[0]:
                cores = round((one.ticks - before[1][one.id]) / _TICKS / (now - before[0]), 3)
            shown.append({"pid": one.id, "name": one.name, "cores": cores, "memory": one.memory})
        known = [one["cores"] for one in shown if one["cores"] is not None]
        shown.sort(key=lambda one: one["memory"], reverse=True)
        return {
            "cores": round(sum(known), 3) if known else None,
            "memory": sum(one.memory for one in processes),
            "count": len(processes),
            "gpus": self._gpus.of({one.id for one in processes}, devices),
            "machine": {"cores": os.cpu_count(), "memory": _PAGE * os.sysconf("SC_PHYS_PAGES")},
            "processes": shown[:MOST_SHOWN],
        }


def _read(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name = text[text.find("(") + 1 : text.rfind(")")]
    fields = text[text.rfind(")") + 2 :].split()
    return _Process(pid, name, int(fields[11]) + int(fields[12]), _PAGE * int(fields[21]))
