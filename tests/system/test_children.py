"""Identifying the process that writes a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from whet.errors import RunError
from whet.records.lock import DirectoryLock
from whet.rl.stored.stop_and_resume import stop_process
from whet.system.children import began, boot_id, is_alive, this_process


def test_a_process_is_known_by_when_it_began() -> None:
    assert began(os.getpid()) == began(os.getpid()) is not None
    assert began(1) != began(os.getpid())
    assert began(2**22 + 1) is None


def test_a_process_of_another_boot_is_gone_whatever_its_number_is_now() -> None:
    me = this_process()
    assert me["boot_id"] == boot_id() is not None
    assert is_alive(me) is True
    assert is_alive({**me, "boot_id": "11111111-2222-3333-4444-555555555555"}) is False
    assert is_alive({**me, "process_began": "another time"}) is False
    assert is_alive({**me, "host": "elsewhere"}) is None
    assert is_alive({"state": "running"}) is None
    assert is_alive({name: value for name, value in me.items() if name != "boot_id"}) is True  # of an earlier whet


def test_a_process_that_only_has_the_number_of_an_earlier_boot_is_sent_no_signal(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        status = {
            **this_process(),
            "pid": other.pid,
            "process_began": began(other.pid),
            "boot_id": "of-an-earlier-boot",
        }
        with pytest.raises(RunError, match="none is sent a signal"):
            stop_process(tmp_path, status, patience=0.0)
        other.communicate(timeout=60)
        assert other.returncode == 0 != -signal.SIGTERM
    finally:
        other.kill()
        other.wait()
        lock.release()


UNDUMPABLE = """
import ctypes
from whet.system.children import undumpable
get = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
before = get()
undumpable()
print(before, get())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has it")
def test_an_undumpable_process_says_so_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", UNDUMPABLE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]
