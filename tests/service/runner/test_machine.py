"""What a runner announces, in control groups and with devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whet.service.runner import machine
from whet.system.memory import memory_limit

GIB = 1 << 30


def system(root: Path, group: str, files: dict[str, str]) -> Path:
    """A system's files with 8 GiB of memory."""
    for name, text in {"proc/meminfo": "MemTotal:  8388608 kB\n", "proc/self/cgroup": group, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_smallest_limit_above_a_process_counts(tmp_path: Path) -> None:
    limits = {
        "sys/fs/cgroup/box/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/box/inner/memory.max": "max\n",
        "sys/fs/cgroup/box/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/box/inner/cpu.max": "max 100000\n",
    }
    root = system(tmp_path, "0::/box/inner\n", limits)
    assert memory_limit(root) == 4 * GIB
    assert machine.cores(root) == 0.5


def test_limits_of_version_1(tmp_path: Path) -> None:
    limits = {
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "25000\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
    }
    root = system(tmp_path, "5:memory:/box\n4:cpu,cpuacct:/box\n", limits)
    assert memory_limit(root) == 2 * GIB
    assert machine.cores(root) == 0.25


def test_without_limits_all_of_the_machine(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/\n", {})
    assert memory_limit(root) == 8 * GIB
    assert machine.cores(root) == (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())


def test_devices_are_those_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '0, GPU-a, Fast, 81920\\n1, GPU-b, Fast, 40960\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [one.index for one in machine.devices()] == ["0", "1"]
    capacity = machine.this_machine("box").capacity()
    assert (capacity["devices"], capacity["device_memory"], capacity["device_kind"]) == (2, 40 * GIB, "Fast")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert [one.index for one in machine.devices()] == ["1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.devices() == ()
