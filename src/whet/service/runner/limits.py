"""What one run may take of its machine, from what it declared, and the watch that ends one that takes more.

A control group counts memory and processes where one can be made (`sandboxes/bubblewrap/cgroups.py`); elsewhere the
processes are looked at up to ten times a second. The folder is measured whenever its file system has lost so much room
that it may have reached its limit. RunLimits of each process (rlimits) keep one that is faster than a look from getting
far.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whet.sandboxes.bubblewrap import cgroups
from whet.system import untrusted
from whet.system.children import family
from whet.system.memory import memory_share, own_memory

MIB, GIB = 1 << 20, 1 << 30
DEFAULT_MEMORY = GIB
"""Declared by a run that declares none, as in the API."""
DEVICE_HOST_MEMORY = 8 * GIB
"""For each device: its driver, pinned buffers, an engine's swap space."""
PROCESSES, PROCESSES_PER_PART, PROCESSES_PER_DEVICE = 512, 128, 1024  # threads among them; a core, a GiB, a device
FILES, FILES_PER_GIB = 8192, 1024
MEASURE_S = 10.0
"""Between two measurements of the folder while its file system loses no room: others may free what the run takes."""
MARGIN = 16  # processes that the kernel allows beyond the limit, so that a look finds more than the limit


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Of one run: bytes of memory, processes and threads, bytes and files in its folder."""

    memory: int
    processes: int
    disk: int
    files: int

    @staticmethod
    def of(needs: Mapping[str, Any]) -> RunLimits:
        """By the needs of a row. An estimate is no measurement: a quarter more than declared, and 1 GiB."""
        declared, devices = int(needs.get("memory") or DEFAULT_MEMORY), int(needs.get("devices") or 0)
        on_devices = devices * int(
            needs.get("device_memory") or 0
        )  # which weights pass through the host on their way to
        cores = float(needs.get("cores") or 1)
        disk = int(needs.get("disk") or 256 * MIB + 8 * (declared + on_devices))
        return RunLimits(
            memory=(declared + on_devices) * 5 // 4 + GIB + devices * DEVICE_HOST_MEMORY,
            processes=PROCESSES + int(PROCESSES_PER_PART * (cores + (declared >> 30))) + PROCESSES_PER_DEVICE * devices,
            disk=disk,
            files=FILES + FILES_PER_GIB * (disk >> 30),
        )

    def rlimits(self, alone: bool) -> dict[str, int]:
        """Of each process, by the names of the module `resource`; `alone`: its user has no processes of others."""
        limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": self.disk}
        return {**limits, "RLIMIT_NPROC": self.processes + MARGIN} if alone else limits

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class LimitWatch:
    """Of a run's processes, the descendants of `top`, and its folder. `enter`, then `exceeded` again and again."""

    def __init__(self, limits: RunLimits, name: str, folder: Path) -> None:
        """`name` of the control group: the same one finds that of a watch before."""
        self._limits, self._folder = limits, folder
        self._group = cgroups.make(name, limits.memory, limits.processes, None)
        self._has = set(self._group.directories) if self._group is not None else set()
        self._room = (0, 0)  # bytes and files that the file system has to lose until the folder is measured
        self._free = (0, 0)
        self._measured_at = self._look_at = float("-inf")
        self._used = (0, 0)

    def enter(self, pid: int) -> None:
        """Put a process, which has no children yet, into the group."""
        if self._group is not None:
            try:
                self._group.add(pid)
            except OSError:  # a group that this user may make and may not fill
                self.close()
                self._group, self._has = None, set()

    def exceeded(self, top: int | None, *, last: bool = False) -> str | None:
        """Which limit was exceeded, as the run's reason. `last`: of a run that has ended, its folder too."""
        limits = self._limits
        if self._group is not None and self._group.killed_for_memory():
            return self._memory_words()
        if self._group is not None and self._group.refused_processes():
            return self._process_words()
        began = time.monotonic()
        if top is not None and not {"memory", "pids"} <= self._has and began >= self._look_at:
            processes = list(itertools.islice(family(top), limits.processes + 1))
            if len(processes) > limits.processes or sum(map(_threads, processes)) > limits.processes:
                return self._process_words()
            if sum(map(own_memory, processes)) > limits.memory and sum(map(memory_share, processes)) > limits.memory:
                return self._memory_words()
            self._look_at = time.monotonic() + 9 * (time.monotonic() - began)  # a tenth of a core, with many threads
        self._measure(last)
        if self._used[0] > limits.disk:
            size = f"{limits.disk / GIB:.3g} GiB"
            return f"disk limit: its folder took more than the {size} that it may have; --disk raises it"
        if self._used[1] > limits.files:
            return f"disk limit: it had more than {limits.files} files, or {untrusted.DEEPEST} levels of folders"
        return None

    def close(self) -> None:
        """Nothing of the run is left."""
        if self._group is not None:
            self._group.end()

    def _memory_words(self) -> str:
        size = f"{self._limits.memory / GIB:.3g} GiB"
        return f"memory limit: it took more than the {size} that it may have for what it declared; --memory raises it"

    def _process_words(self) -> str:
        return f"process limit: it started more than {self._limits.processes} processes and threads"

    def _measure(self, now: bool) -> None:
        try:
            filesystem = os.statvfs(self._folder)
        except OSError:  # deleted
            return
        free = (filesystem.f_bfree * filesystem.f_frsize, filesystem.f_ffree)
        lost = any(before - left >= room for before, left, room in zip(self._free, free, self._room, strict=True))
        if not (now or lost or time.monotonic() - self._measured_at > MEASURE_S):
            return
        self._used, self._free = untrusted.measure(self._folder, self._limits.files), free
        # Half of what is left, but no less than a sixteenth: measuring takes time as well.
        (size, count), limits = self._used, self._limits
        self._room = (
            max((limits.disk - size) // 2, limits.disk // 16),
            max((limits.files - count) // 2, limits.files // 16),
        )
        self._measured_at = time.monotonic()


def _threads(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:
        return 0
