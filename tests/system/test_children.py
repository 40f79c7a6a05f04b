"""Identifying the process that writes a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from whet.errors import RunError
from whet.records.lock import DirectoryLock
from whet.rl.stored.stored_run import stop_process
from whet.system.children import (
    began,
    boot_id,
    how_it_ended,
    in_session,
    is_alive,
    output_of,
    start,
    this_process,
    wait_or_kill,
    when_closed,
)


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


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(("seconds", "code"), [("0", 0), ("600", None)])
def test_nothing_is_left_of_a_process_that_has_ended_or_takes_too_long(seconds: str, code: int | None) -> None:
    process = start([sys.executable, "-c", FAMILY, seconds], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    if sys.platform == "linux":
        assert child in set(in_session(process.pid))
    assert wait_or_kill(process, 60.0 if seconds == "0" else 0.0) == code
    assert process.stdout.read() == b""  # the child, which has the other end, has ended too
    while began(child) is not None:  # a process closes its files before it has ended
        time.sleep(0.01)
    process.stdout.close()


def test_a_command_that_fails_is_late_or_is_not_there_says_nothing() -> None:
    assert output_of([sys.executable, "-c", "print('yes')"], 60.0) == "yes\n"
    assert output_of([sys.executable, "-c", "print('no'); raise SystemExit(1)"]) is None
    assert output_of([sys.executable, "-c", "import time; print('no', flush=True); time.sleep(600)"], 0.2) is None
    assert output_of(["/no/such/program"]) is None


def test_how_a_process_ended_is_said_in_words() -> None:
    assert [how_it_ended(code) for code in (3, -9, -40)] == [
        "exited with code 3",
        "was killed by SIGKILL",
        "was killed by signal 40",
    ]


def test_the_end_of_a_pipe_is_noticed() -> None:
    reading, writing = os.pipe()
    closed = threading.Event()
    when_closed(reading, closed.set)
    assert not closed.wait(0.05)
    os.close(writing)
    assert closed.wait(60.0)
    os.close(reading)
