"""Child processes: how they start and end, also when their parent is killed; and the identity of a process id.

Process ids are reused; an id together with the time at which its process began and the boot of its machine is not.
Programs that guard others by themselves, in few milliseconds or in another Python, have their own few lines of this:
`envs/mcp/guard.py`, `inference/vllm/guard.py`, and what runs inside a sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

START_METHOD = "spawn"
"""Of processes that multiprocessing starts: from nothing. A fork, which Python and libraries choose on Linux, is not
safe with torch's threads."""
PARENT_PIPE = "WHET_SERVICE_PARENT"
"""Variable with the number of an open descriptor: a pipe that only the parent can write to, and that it never does."""
PARENT_GRACE_S = 15.0
"""Seconds that a process whose parent is gone has to end by itself."""
PR_SET_DUMPABLE = 4


def start(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` in a session of its own, so that Ctrl-C does not reach it, and without input unless given."""
    return subprocess.Popen(command, **{"stdin": subprocess.DEVNULL, "start_new_session": True, **options})


def output_of(command: Sequence[str | os.PathLike[str]], seconds: float | None = None, **options: Any) -> str | None:
    """What a short command prints; None where it cannot be started, fails, or takes longer."""
    try:
        said: str = subprocess.check_output(
            command, text=True, timeout=seconds, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, unless it is gone or another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(pid: int) -> None:
    """Kill a process that leads its group or session, and what else is in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def wait_or_kill(process: subprocess.Popen[Any], seconds: float) -> int | None:
    """The exit code of a process that `start` started; None where it took longer. Nothing of its group is left."""
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None
    finally:
        kill_group(process.pid)
        process.wait()


def how_it_ended(code: int) -> str:
    """`exited with code 3` or `was killed by SIGKILL`, from an exit code as subprocess and multiprocessing have it."""
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """`SIGKILL`; real-time signals have a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Listener:
    """A small program in a Python of its own that reads what this process tells it, and may send it signals."""

    def __init__(self, program: str, *arguments: object) -> None:
        """Start `program`, with this process's id before the other arguments. Raises `OSError`."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, str(os.getpid()), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is not for this one
        )
        assert self._process.stdin is not None
        self.pid, self.fd = self._process.pid, self._process.stdin.fileno()
        os.set_blocking(self.fd, False)

    def tell(self, data: bytes) -> None:
        """Never blocks: what it does not read is lost."""
        with contextlib.suppress(OSError):
            os.write(self.fd, data)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def when_closed(descriptor: int, then: Callable[[], object]) -> None:
    """Call `then` from a thread once the pipe's other end, to which nothing is ever written, is closed."""
    if descriptor:  # standard input stays that of this process's children
        os.set_inheritable(descriptor, False)

    def watch() -> None:
        os.read(descriptor, 1)
        then()

    threading.Thread(target=watch, name="whet parent watch", daemon=True).start()


def end_with_parent() -> None:
    """Where `PARENT_PIPE` was given to this process: end as by SIGTERM when the parent is gone. Else nothing."""
    given = os.environ.pop(PARENT_PIPE, None)
    if given is None:
        return

    def end() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(PARENT_GRACE_S)
        os._exit(1)

    when_closed(int(given), end)


def process_context() -> BaseContext:
    """What starts processes by multiprocessing."""
    from multiprocessing import get_context

    return get_context(START_METHOD)


def follow_parent(last: Callable[[], object] | None = None) -> None:
    """In a child of `process_context`: leave Ctrl-C and SIGHUP to the parent, and end with it, however it ends.

    `last` is called then, for what a parent that was killed could not do.
    """
    from multiprocessing import parent_process

    for number in (signal.SIGINT, signal.SIGHUP):  # the parent decides what Ctrl-C and a closed terminal mean
        signal.signal(number, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        if last is not None:
            last()
        os._exit(0)

    when_closed(parent.sentinel, end)


def undumpable() -> None:
    """No process without further rights reads this one's memory, variables or descriptors, and it leaves no core dump.

    Runs that are not isolated have the user of the service: `/proc/PID/environ` and ptrace are closed to them by this.
    Only Linux has it. What this process starts is not concerned.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def began(pid: int) -> str | None:
    """When the process with this id began, as text to compare for equality; None where there is no such process."""
    if not Path("/proc/self/stat").exists():
        return (output_of(["ps", "-o", "lstart=", "-p", str(pid)]) or "").strip() or None
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else fields[19]


def is_suspended(pid: int) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) keeps the process from running; False where that cannot be known."""
    fields = _stat(pid)
    return fields is not None and fields[0] in ("T", "t")


def in_session(session: int) -> Iterator[int]:
    """The processes of a session, its leader too; none where there is no /proc."""
    for entry in glob.glob("/proc/[0-9]*"):
        pid = int(Path(entry).name)
        fields = _stat(pid)
        if fields is not None and fields[3] == str(session):
            yield pid


def _stat(pid: int) -> list[str] | None:
    """What /proc says of a process behind its name: state, parent, group, session, ...; None for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def family(pid: int) -> Iterator[int]:
    """The process and its descendants, the outermost first."""
    waiting = [pid]
    while waiting:
        one = waiting.pop(0)
        yield one
        for children in glob.glob(f"/proc/{one}/task/*/children"):
            with contextlib.suppress(OSError):
                waiting += map(int, Path(children).read_text().split())


@cache
def boot_id() -> str | None:
    """Identifies the time since this machine was started, as text to compare for equality; None where it has no id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except OSError:  # macOS
        return (output_of(["sysctl", "-n", "kern.bootsessionuuid"]) or "").strip() or None


def this_process() -> dict[str, Any]:
    """Fields of a status file that identify the process that writes it."""
    pid = os.getpid()
    return {"pid": pid, "process_began": began(pid), "host": socket.gethostname(), "boot_id": boot_id()}


def is_alive(process: Mapping[str, Any]) -> bool | None:
    """Whether the process that `this_process` described still runs; None where that cannot be known here.

    That is on another host, and for an incomplete description. A description without a boot id is of an earlier whet.
    """
    pid, host, started, boot = (process.get(name) for name in ("pid", "host", "process_began", "boot_id"))
    if host not in (None, socket.gethostname()) or not isinstance(pid, int) or started is None:
        return None
    if boot is not None and boot != boot_id():
        return False
    return bool(began(pid) == started)
