"""Memory as Linux counts it: of processes, now and at their peak, and what this process may have of the machine's.

PeakMemory().take()   {process id: HeldMemory} of this process and its descendants, each at its peak since the last call
common_bytes(held)    what they share, which counts once
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from whet.system.children import family

RESET_PEAK = "5"
"""Written to /proc/PID/clear_refs: VmHWM begins again at what is resident now (Linux 4.0)."""


def own_memory(pid: int) -> int:
    """Bytes of memory of a process without files; what it shares with others counts for each of them."""
    counts = _counts(Path(f"/proc/{pid}/status"))
    return counts.get("RssAnon", 0) + counts.get("RssShmem", 0)


def memory_share(pid: int) -> int:
    """The same with shared memory divided among its users (PSS); slower to read."""
    counts = _counts(Path(f"/proc/{pid}/smaps_rollup"))
    return counts["Pss_Anon"] + counts.get("Pss_Shmem", 0) if "Pss_Anon" in counts else own_memory(pid)


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Resident bytes of a process."""

    own: int
    files: int
    """Of mapped files: libraries, weights."""
    shared: int
    """Of mappings in /dev/shm."""
    program: str
    """Processes of one program map the same files."""


class PeakMemory:
    """What this process and its descendants have held at most.

    Where the kernel does not begin a peak again (gVisor, a read-only /proc) the most that `poll` saw counts. Without
    /proc (macOS) it is this process alone, since its start.
    """

    def __init__(self) -> None:
        self._polled: dict[int, int] = {}
        self._lock = threading.Lock()
        self._resets = _reset(os.getpid())

    def poll(self) -> None:
        """To be called often, from any thread; nothing where the kernel keeps peaks."""
        if self._resets:
            return
        with self._lock:
            for pid in family(os.getpid()):
                resident = _counts(Path(f"/proc/{pid}/status")).get("VmRSS", 0)
                self._polled[pid] = max(resident, self._polled.get(pid, 0))

    def take(self) -> dict[int, HeldMemory]:
        """The peak of each process since the last call. A process that ended meanwhile is not in it."""
        self.poll()
        with self._lock:
            held, polled, self._polled = dict[int, HeldMemory](), self._polled, {}
        for pid in family(os.getpid()):
            counts = _counts(Path(f"/proc/{pid}/status"))
            if "VmRSS" not in counts:
                continue
            peak = counts.get("VmHWM", 0) if self._resets and _reset(pid) else polled.get(pid, 0)
            files, shared = counts.get("RssFile", 0), counts.get("RssShmem", 0)
            program = f"{pid}"
            with contextlib.suppress(OSError):
                program = os.readlink(f"/proc/{pid}/exe")
            held[pid] = HeldMemory(max(peak, counts["VmRSS"]) - files - shared, files, shared, program)
        if not held:
            unit = 1 if sys.platform == "darwin" else 1024
            whole = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
            held[os.getpid()] = HeldMemory(whole, 0, 0, "")
        return held


def common_bytes(processes: Iterable[HeldMemory], shared: int = 0) -> int:
    """Bytes of files that processes of one program map, and of shared memory (`shared` at least), each once."""
    files: dict[str, int] = defaultdict(int)
    for held in processes:
        shared = max(shared, held.shared)
        files[held.program] = max(files[held.program], held.files)
    return shared + sum(files.values())


def _reset(pid: int) -> bool:
    """Whether the kernel begins the peak of this process again."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes of the machine's memory, or less where a control group has a limit. `root` is as in `control_groups`."""
    whole = _counts(root / "proc/meminfo").get("MemTotal", 0) or _pages("SC_PHYS_PAGES")
    return min([whole, *(limit for limit, _ in _group_limits(root))])


def memory_available(root: Path = Path("/")) -> int | None:
    """Bytes that can be had without taking from other processes; None where that is not known (macOS)."""
    free = _counts(root / "proc/meminfo").get("MemAvailable")
    return None if free is None else max(0, min([free, *(limit - used for limit, used in _group_limits(root))]))


def _pages(name: str) -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)


def _group_limits(root: Path) -> Iterable[tuple[int, int]]:
    """(limit, bytes in use that cannot be dropped) of each control group that has a limit."""
    for folder in control_groups(root, "memory"):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, used = words_of(folder / limit), words_of(folder / usage)
            if most and most[0].isdigit():
                stat = words_of(folder / "memory.stat")
                dropped = dict(zip(stat[::2], stat[1::2], strict=False)).get("inactive_file", "0")
                yield int(most[0]), max(0, int(used[0]) - int(dropped)) if used else 0


def control_groups(root: Path, controller: str) -> list[Path]:
    """The folders of this process's control group and of those above it, of version 2 and of version 1.

    `root` is where the system's files begin.
    """
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


def words_of(path: Path) -> list[str]:
    """Of a file of the system; none where it cannot be read."""
    return " ".join(_lines(path)).split()


def _counts(file: Path) -> dict[str, int]:
    """The lines `name: N kB` of a file of /proc, in bytes; {} where it cannot be read."""
    rows = (line.split() for line in _lines(file))
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) == 3 and row[2] == "kB"}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
