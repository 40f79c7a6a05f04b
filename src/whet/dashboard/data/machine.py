"""What the processes of a run use of this machine: cores and memory, from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from whet.runs.process import began

MOST_SHOWN = 20
MOST_KEPT = 256
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Process(NamedTuple):
    id: int
    parent: int
    name: str
    ticks: int  # of processor time
    memory: int  # bytes


class ProcessUse:
    """Looks at a process and those that it started. Cores are those used since the look before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: OrderedDict[tuple[int, str], tuple[float, dict[int, int]]] = OrderedDict()

    def of(self, pid: int, since: str) -> dict[str, Any] | None:
        """`since` is when the process began, because ids are reused; None where it is not on this machine any more."""
        if not Path("/proc/self/stat").exists() or began(pid) != since:
            return None
        found = _with_children(pid)
        now = time.monotonic()
        with self._lock:
            before = self._before.get((pid, since))
            self._before[pid, since] = now, {one.id: one.ticks for one in found}
            self._before.move_to_end((pid, since))
            while len(self._before) > MOST_KEPT:
                self._before.popitem(last=False)
        shown: list[dict[str, Any]] = []
        for one in found:
            cores = None
            if before is not None and one.id in before[1] and now > before[0]:
                cores = round((one.ticks - before[1][one.id]) / _TICKS / (now - before[0]), 3)
            shown.append({"pid": one.id, "name": one.name, "cores": cores, "memory": one.memory})
        known = [one["cores"] for one in shown if one["cores"] is not None]
        shown.sort(key=lambda one: one["memory"], reverse=True)
        return {
            "cores": round(sum(known), 3) if known else None,
            "memory": sum(one.memory for one in found),
            "count": len(found),
            "machine": {"cores": os.cpu_count(), "memory": _PAGE * os.sysconf("SC_PHYS_PAGES")},
            "processes": shown[:MOST_SHOWN],
        }


def _with_children(pid: int) -> list[_Process]:
    every = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := _read(int(name))) is not None:
            every[process.id] = process
    children: dict[int, list[int]] = {}
    for process in every.values():
        children.setdefault(process.parent, []).append(process.id)
    found, waiting = [], [pid]
    while waiting:
        at = waiting.pop()
        if at in every:
            found.append(every.pop(at))
            waiting += children.get(at, [])
    return found


def _read(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name = text[text.find("(") + 1 : text.rfind(")")]
    fields = text[text.rfind(")") + 2 :].split()
    return _Process(pid, int(fields[1]), name, int(fields[11]) + int(fields[12]), _PAGE * int(fields[21]))
