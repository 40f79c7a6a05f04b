"""Peaks of processes, and how much memory there is to have."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from whet.system import memory
from whet.system.memory import HeldMemory, PeakMemory, common_bytes, memory_available, memory_limit

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="peaks are kept by Linux")
HOLDS = "import sys; x = b'1' * (64 << 20); del x; print(flush=True); sys.stdin.read()"


@linux
def test_the_peak_of_a_child_is_seen_after_it_and_once() -> None:
    peaks = PeakMemory()
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held = peaks.take()[child.pid]
        assert 64 * MIB < held.own < 128 * MIB
        assert held.files > 0
        assert peaks.take()[child.pid].own < 32 * MIB


@linux
def test_where_the_kernel_keeps_no_peak_what_was_polled_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_reset", lambda pid: False)
    peaks = PeakMemory()
    with mmap.mmap(-1, 64 * MIB) as block:  # never a part of a heap that keeps what is freed
        block[::4096] = b"1" * len(block[::4096])
        peaks.poll()
    (before, after) = (next(iter(peaks.take().values())).own for _ in range(2))
    assert before > after + 32 * MIB


def test_without_proc_it_is_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_counts", lambda file: {})
    [held] = PeakMemory().take().values()
    assert held.own > 8 * MIB
    assert held.files == held.shared == 0


def test_what_processes_of_one_program_share_counts_once() -> None:
    processes = [HeldMemory(1, 100, 7, "python"), HeldMemory(2, 90, 9, "python"), HeldMemory(3, 30, 0, "vllm")]
    assert common_bytes(processes) == 9 + 100 + 30
    assert common_bytes(processes, shared=20) == 20 + 100 + 30


def machine(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_control_group_leaves_less_than_the_machine(tmp_path: Path) -> None:
    meminfo = "MemTotal: 1000 kB\nMemAvailable: 800 kB\nHugePages_Total: 0\n"
    machine(tmp_path, proc__meminfo=meminfo)
    assert (memory_limit(tmp_path), memory_available(tmp_path)) == (1000 << 10, 800 << 10)
    group = {"proc__self__cgroup": "0::/a/b\n"}
    (tmp_path / "sys/fs/cgroup/a/b").mkdir(parents=True)
    machine(tmp_path, **group)
    (tmp_path / "sys/fs/cgroup/a/memory.max").write_text(f"{500 << 10}\n")
    (tmp_path / "sys/fs/cgroup/a/memory.current").write_text(f"{450 << 10}\n")
    (tmp_path / "sys/fs/cgroup/a/memory.stat").write_text(f"anon 5\ninactive_file {150 << 10}\n")
    (tmp_path / "sys/fs/cgroup/a/b/memory.max").write_text("max\n")
    assert (memory_limit(tmp_path), memory_available(tmp_path)) == (500 << 10, 200 << 10)


def test_without_proc_what_is_available_is_not_known(tmp_path: Path) -> None:
    assert memory_available(tmp_path) is None
    assert memory_limit(tmp_path) > 0
