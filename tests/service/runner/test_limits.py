"""What a run may take by what it declares, and the watch that looks where no control group counts."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from whet.sandboxes.bubblewrap import cgroups
from whet.service.runner.ends import end_of
from whet.service.runner.limits import LimitWatch, RunLimits
from whet.service.runner.progress import Seen

MIB, GIB = 1 << 20, 1 << 30
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc, which is not here")


def limits(**changed: int) -> RunLimits:
    return RunLimits(**{"memory": 64 * GIB, "processes": 10_000, "disk": 64 * GIB, "files": 1 << 30, **changed})


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A watch on `tmp_path` that has no control group."""
    monkeypatch.setattr(cgroups, "make", lambda *arguments: None)
    return lambda **changed: LimitWatch(limits(**changed), "x", tmp_path)


def test_limits_follow_what_is_declared() -> None:
    small = RunLimits.of({"cores": 1, "memory": 64 * MIB})
    assert small == RunLimits(memory=80 * MIB + GIB, processes=640, disk=768 * MIB, files=8192)
    large = RunLimits.of({"cores": 8, "memory": 4 * GIB, "devices": 2, "device_memory": 40 * GIB, "disk": 500 * GIB})
    assert (large.memory, large.processes) == (105 * GIB + 17 * GIB, 512 + 128 * (8 + 4) + 2048)
    assert (large.disk, large.files) == (500 * GIB, 8192 + 512_000)
    assert RunLimits.of({}) == RunLimits.of({"memory": GIB, "cores": 1, "disk": 0, "devices": 0})


def test_a_limit_that_was_exceeded_is_the_reason_whatever_the_run_says() -> None:
    ended = {"code": 0, "signal": None, "exceeded": "memory limit: it took more than 1 GiB"}
    for seen in (Seen(state="finished"), Seen(state="interrupted"), Seen(state="failed", error="other")):
        for stopping in (True, False):
            end = end_of("training", ended, seen, stopping=stopping)
            assert (end.state, end.reason) == ("failed", "memory limit: it took more than 1 GiB")


@linux
def test_memory_of_a_family_is_added_up(watch: Any) -> None:
    use = "one = mmap.mmap(-1, 64 << 20); one.write(bytes(64 << 20)); print(flush=True); os.read(0, 1)"
    words = [sys.executable, "-I", "-S", "-c", f"import mmap, os; os.fork(); {use}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        assert watch(memory=512 * MIB).exceeded(process.pid) is None
        assert watch(memory=100 * MIB).exceeded(process.pid).startswith("memory limit: ")
        assert process.stdin is not None
        process.stdin.close()


@linux
def test_threads_and_processes_count_as_processes(watch: Any) -> None:
    start = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    code = f"import threading, time\nfor _ in range(20): {start}\nprint(flush=True); input()"
    words = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert watch(processes=21).exceeded(process.pid) is None
        assert watch(processes=20).exceeded(process.pid).startswith("process limit: ")
        process.communicate(b"\n")


def test_folder_is_measured_without_following_links(watch: Any, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(MIB))
    (tmp_path / "link").symlink_to("/usr")
    assert watch(disk=4 * MIB, files=3).exceeded(None) is None
    assert watch(disk=MIB // 2).exceeded(None).startswith("disk limit: its folder took")
    assert watch(files=1).exceeded(None).startswith("disk limit: it had more than 1 files")
    deep = tmp_path
    for _ in range(110):
        deep = deep / "d"
        deep.mkdir()
    assert "levels of folders" in watch().exceeded(None)


def test_folder_is_measured_again_once_its_file_system_has_lost_room(watch: Any, tmp_path: Path) -> None:
    found = watch(disk=8 * MIB)
    assert found.exceeded(None) is None
    with (tmp_path / "large").open("wb") as file:
        file.write(os.urandom(16 * MIB))
        os.fsync(file.fileno())
    assert found.exceeded(None, last=True).startswith("disk limit: ")


def test_shared_memory_counts() -> None:
    from whet.system.memory import memory_share, own_memory

    if sys.platform != "linux":
        pytest.skip("processes are looked for in /proc, which is not here")
    before = own_memory(os.getpid()), memory_share(os.getpid())
    with mmap.mmap(-1, 32 * MIB) as shared:
        shared.write(b"x" * (32 * MIB))
        assert own_memory(os.getpid()) > before[0] + 24 * MIB
        assert memory_share(os.getpid()) > before[1] + 24 * MIB
