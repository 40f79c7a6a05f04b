"""Which process runs a run, and stopping it.

Process ids are reused; an id together with the time at which its process began and the boot of its machine is not.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.records.lock import is_locked

POLL_SECONDS = 0.1


def began(pid: int) -> str | None:
    """When the process with this id began, as text to compare for equality; None where there is no such process."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            after_name = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if after_name[0] == "Z" else after_name[19]
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip() or None


def is_suspended(pid: int) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) keeps the process from running; False where that cannot be known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def family(pid: int) -> Iterator[int]:
    """The process and its descendants, the outermost first."""
    waiting = [pid]
    while waiting:
        one = waiting.pop(0)
        yield one
        for children in glob.glob(f"/proc/{one}/task/*/children"):
            with contextlib.suppress(OSError):
                waiting += map(int, Path(children).read_text().split())


def own_memory(pid: int) -> int:
    """Bytes of memory of a process without files; what it shares with others counts for each of them."""
    return _kib(Path(f"/proc/{pid}/status"), "RssAnon:", "RssShmem:") or 0


def memory_share(pid: int) -> int:
    """The same with shared memory divided among its users (PSS); slower to read."""
    found = _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:", "Pss_Shmem:")
    return own_memory(pid) if found is None else found


def _kib(file: Path, *names: str) -> int | None:
    """The sum of these lines of a file of /proc, in bytes; None where it cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(names))


@cache
def boot_id() -> str | None:
    """Identifies the time since this machine was started, as text to compare for equality; None where it has no id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except OSError:
        pass
    try:  # macOS
        told = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return told.stdout.strip() or None


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


def stop_process(
    directory: Path, status: Mapping[str, Any], *, patience: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Send SIGTERM to the process that runs in `directory`, once it is identified, and wait for its end.

    `status` has the fields of `this_process`. Raises `RunError` where the process cannot be identified, or has not
    ended after `patience` seconds.
    """
    pid, host = status.get("pid"), status.get("host")
    if host not in (None, socket.gethostname()):
        raise RunError(f"{directory} runs on {host}: stop it there.")
    if not isinstance(pid, int) or not is_alive(status):
        raise RunError(
            f"{directory} is in use, but not by the process that its status.json names ({pid}); so none is sent a "
            "signal. Stop the one that uses it yourself: its number is in the run's .lock file."
        )
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise RunError(f"{directory}: process {pid} belongs to another user; stop it as that user.") from None
    deadline = clock() + patience
    while is_locked(directory):
        if clock() >= deadline:
            raise RunError(
                f"{directory}: process {pid} was sent a stop signal {patience:.0f} s ago and still runs. It stops by "
                f"itself; to end it now: kill -9 {pid} (what was trained since the last checkpoint is trained again)."
            )
        time.sleep(POLL_SECONDS)
