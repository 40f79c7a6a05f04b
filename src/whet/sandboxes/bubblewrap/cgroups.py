"""Limits of a whole process tree through Linux control groups, versions 1 and 2, where this process may make them.

Where it may not, `make` returns None and only the rlimits of each process hold; the user has to do nothing.

In version 1 the groups of sandboxes are children of this process's own. In version 2 a group with processes in it, such
as this process's own, cannot have children with limits, so they are children of the nearest ancestor that this user may
write to: as root everywhere, as another user in what systemd delegates (`systemd-run --user --scope`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from whet.system.children import kill

CONTROLLERS = ("memory", "pids", "cpu")
PERIOD_US = 100_000
PREFIX = "whet-"
LOOK_S, REMOVE_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The control group of one sandbox: a directory per controller, which in version 2 is the same one."""

    directories: dict[str, Path]
    version: int

    def add(self, pid: int) -> None:
        for directory in set(self.directories.values()):
            (directory / "cgroup.procs").write_text(str(pid))

    def killed_for_memory(self) -> int:
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _counter(self.directories.get("memory"), name, "oom_kill")

    def refused_processes(self) -> int:
        return _counter(self.directories.get("pids"), "pids.events", "max")

    def end(self) -> None:
        """Kill what is left in the group, also what has left its session, and remove it."""
        for _ in range(int(REMOVE_S / LOOK_S)):
            left: set[int] = set()
            for directory in set(self.directories.values()):
                with contextlib.suppress(OSError):
                    left |= set(map(int, (directory / "cgroup.procs").read_text().split()))
            for pid in left:
                kill(pid)
            if not left:
                break
            time.sleep(LOOK_S)
        self.remove()

    def remove(self) -> None:
        """Once its processes are gone. A directory that the kernel still holds is swept by a later process."""
        for directory in set(self.directories.values()):
            with contextlib.suppress(OSError):
                directory.rmdir()


def make(name: str, memory_bytes: int, processes: int, cpus: float | None, root: Path = Path("/")) -> Cgroup | None:
    """A control group with these limits, or None where none can be made. `root` is where the system's files begin.

    Without `cpus` it gets as much of busy cores as every other group.
    """
    parents, version = parents_of_groups(root)
    directories: dict[str, Path] = {}
    for controller, parent in parents.items():
        directory = parent / f"{PREFIX}{name}"
        try:
            directory.mkdir(exist_ok=True)
            for file, value in _settings(controller, version, memory_bytes, processes, cpus):
                (directory / file).write_text(value)
        except OSError:
            if directory not in directories.values():
                with contextlib.suppress(OSError):
                    directory.rmdir()
            continue
        directories[controller] = directory
        if controller == "memory":
            with contextlib.suppress(OSError):  # absent where the kernel does not count swap
                no_swap = ("memory.memsw.limit_in_bytes", memory_bytes) if version == 1 else ("memory.swap.max", 0)
                (directory / no_swap[0]).write_text(str(no_swap[1]))
    return Cgroup(directories, version) if directories else None


def available() -> tuple[str, ...]:
    """The controllers that sandboxes of this process get."""
    group = make(f"{os.getpid()}-probe", 1 << 30, 64, 1.0)
    if group is None:
        return ()
    group.remove()
    return tuple(group.directories)


def _settings(
    controller: str, version: int, memory_bytes: int, processes: int, cpus: float | None
) -> list[tuple[str, str]]:
    if controller == "memory":
        return [("memory.limit_in_bytes" if version == 1 else "memory.max", str(memory_bytes))]
    if controller == "pids":
        return [("pids.max", str(processes))]
    if cpus is None:
        return []
    quota = str(max(1000, int(cpus * PERIOD_US)))
    if version == 1:
        return [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", quota)]
    return [("cpu.max", f"{quota} {PERIOD_US}")]


@functools.cache
def parents_of_groups(root: Path) -> tuple[dict[str, Path], int]:
    """Where a group may be made for each controller, and the version."""
    own: dict[str, str] = {}
    try:
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            own |= dict.fromkeys(names.split(","), path.lstrip("/"))
        mounts = [line.split() for line in (root / "proc/self/mounts").read_text().splitlines()]
    except OSError:  # not Linux, or no /proc
        return {}, 2
    parents: dict[str, Path] = {}
    for _, mount, kind, options, *_ in mounts:
        for controller in CONTROLLERS:
            if kind == "cgroup" and controller in options.split(","):
                parents[controller] = _existing(root / mount.lstrip("/"), own.get(controller, ""))
    version = 1 if parents else 2
    for _, mount, kind, *_ in mounts:
        if kind == "cgroup2" and not parents:
            parents = _delegated(root / mount.lstrip("/"), own.get("", ""))
    for parent in set(parents.values()):
        _sweep(parent, root)
    return parents, version


def _existing(mount: Path, own: str) -> Path:
    directory = mount / own
    return directory if directory.is_dir() else mount


def _delegated(mount: Path, own: str) -> dict[str, Path]:
    """Version 2: the nearest group, from our own upwards, below which the most controllers can be had."""
    best: dict[str, Path] = {}
    nearest = _existing(mount, own)
    for directory in [nearest, *(parent for parent in nearest.parents if parent.is_relative_to(mount))]:
        enabled = _enabled(directory)
        if len(enabled) > len(best):
            best = dict.fromkeys(enabled, directory)
    return best


def _enabled(directory: Path) -> list[str]:
    """The controllers that groups made in this one can have, switched on where that is needed and allowed.

    Moving a process into such a group takes the right to write `cgroup.procs` of the group above both.
    """
    if not all(os.access(path, os.W_OK) for path in (directory, directory / "cgroup.procs")):
        return []
    try:
        there = (directory / "cgroup.controllers").read_text().split()
        enabled = (directory / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
    for name in set(there) - set(enabled):
        if name in CONTROLLERS:
            with contextlib.suppress(OSError):  # refused where the group has processes of its own
                (directory / "cgroup.subtree_control").write_text(f"+{name}")
                enabled.append(name)
    return [name for name in CONTROLLERS if name in enabled]


def _sweep(parent: Path, root: Path) -> None:
    """Empty groups of processes that were killed before they could remove them."""
    for directory in parent.glob(f"{PREFIX}*"):
        pid = directory.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not (root / "proc" / pid).exists():
            with contextlib.suppress(OSError):
                directory.rmdir()


def _counter(directory: Path | None, file: str, key: str) -> int:
    if directory is None:
        return 0
    try:
        lines = (directory / file).read_text().splitlines()
    except OSError:  # an older kernel without this file
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)
