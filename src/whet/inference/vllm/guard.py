"""`python -I guard.py DIRECTORY PARENT COMMAND...`: a process between whet and one vLLM server, which ends with it.

    whet ──pipe──▶ guard ──▶ API server ─▶ EngineCore ─▶ Worker, ...
         ◀─lines──

A vLLM server is several processes, and they survive each other: after a SIGKILL of the API server its EngineCore keeps
memory and GPU. So the guard ends all of them as soon as one is gone, when whet closes the pipe, and when whet itself is
gone, however that ended. It then removes what they made outside their files: shared memory, semaphores, sockets.

It is in a session of its own, as the server is, so Ctrl-C reaches whet alone. Orphans of the server become children of
the guard. Where the guard itself is killed, the kernel kills the API server, and whet ends the rest with `sweep`; where
whet is killed with it, the workers end themselves and EngineCore (`extension/whet_vllm_lifeline.py`).

Standard library only, and nothing of whet: it starts in 20 ms and takes 10 MB. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENGINE_NAME = "VLLM::"
"""How the names of processes begin that a server cannot do without."""
TRACKER = b"multiprocessing.resource_tracker"
SHARED = Path("/dev/shm")
SHARED_NAMES = re.compile(r"psm_|sem\.mp-|torch_|nccl-|vllm_")
"""What multiprocessing, torch, NCCL and vLLM call their shared memory. Weights that whet lends have other names."""
LOG_BYTES = 8 << 20
"""When the log is longer, what it has is moved to `LOG.1`."""
GRACE_S = 5.0
"""From SIGTERM to SIGKILL."""
TRACKER_S = 3.0
"""For resource trackers, once the processes are gone that they clean up after."""
KILLED_S = 30.0
"""For killed processes to be gone; a driver may hold one."""
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.25, 2.0
GUARD = "WHET_VLLM_GUARD"
"""Variable of the server's processes: the guard's number, and when it began."""
TMP, SOCKETS = "t", "s"
"""Folders of a server's directory that go when it ends: its temporary files, and the socket it listens on."""


class ProcessLine(NamedTuple):
    """A line of the process table."""

    name: str
    parent: int
    session: int
    began: str
    """Text to compare for equality."""


def process(pid: int) -> ProcessLine | None:
    """None for one that has ended, whether it is collected or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    pid_and_name, _, rest = stat.rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return ProcessLine(pid_and_name.partition("(")[2], int(fields[1]), int(fields[3]), fields[19])


def command_line(pid: int) -> bytes:
    """Its words, each with a zero; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def members(session: int, guard: int | None = None) -> dict[int, ProcessLine]:
    """The processes of a server: those of its session, and all descendants of these and of the guard."""
    listed = {int(entry): process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    table = {pid: one for pid, one in listed.items() if one is not None}
    pids = {pid for pid, one in table.items() if one.session == session or one.parent == guard}
    while more := {pid for pid, one in table.items() if one.parent in pids} - pids:
        pids |= more
    return {pid: table[pid] for pid in pids - {guard}}


def engines(processes: Mapping[int, ProcessLine]) -> dict[int, ProcessLine]:
    """Those of a server's processes that it cannot do without.

    What such a process forks has its name until it starts a program, and may end: a compiler, a pool of helpers.
    """
    named = {pid: one for pid, one in processes.items() if one.name.startswith(ENGINE_NAME)}
    return {pid: one for pid, one in named.items() if one.parent not in named or named[one.parent].name != one.name}


class SharedFiles:
    """Shared memory and semaphores that a server's processes made: those that they have mapped.

    What is there before the server starts, which is when this is made, is another's. Files are compared by number: a
    semaphore is mapped under another name than it gets.
    """

    LOOKS = 20
    """In how many looks a new file must not have been mapped by the server to count as another's."""

    def __init__(self) -> None:
        self._ours: set[tuple[str, int]] = set()
        self._others = dict.fromkeys(self._present(), self.LOOKS)

    def unknown(self) -> set[tuple[str, int]]:
        """Files of which it is not known whose they are."""
        present = self._present()
        self._others = {file: looks for file, looks in self._others.items() if file in present}
        return {file for file in present - self._ours if self._others.get(file, 0) < self.LOOKS}

    def look(self, pids: Iterable[int]) -> bool:
        """Learn of new ones; whether there were any."""
        unknown = self.unknown()
        if not unknown:
            return False
        mapped = set().union(*map(_mapped, pids))
        new = {file for file in unknown if file[1] in mapped}
        for file in unknown - new:
            self._others[file] = self._others.get(file, 0) + 1
        self._ours |= new
        return bool(new)

    def remove(self) -> None:
        for name, _ in self._ours & self._present():
            (SHARED / name).unlink(missing_ok=True)

    def _present(self) -> set[tuple[str, int]]:
        """Names and numbers."""
        paths = set()
        with contextlib.suppress(OSError), os.scandir(SHARED) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if SHARED_NAMES.match(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        paths.add((entry.name, entry.inode()))
        return paths


def _mapped(pid: int) -> set[int]:
    """Numbers of the files in shared memory that a process has mapped."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        return {int(line.split(maxsplit=5)[4]) for line in lines if f" {SHARED}/" in line}
    return set()


def sweep(
    session: int,
    directory: Path,
    shared: SharedFiles,
    *,
    guard: int | None = None,
    grace_s: float = 0.0,
    reap: Callable[[], object] = lambda: None,
) -> list[int]:
    """End a server's processes and remove what they leave; returns those that could not be ended.

    The API server, whose number is that of the session, is sent SIGTERM and has `grace_s` to end the others and itself.
    Resource trackers are left to the end: they remove what was made too short a time ago to be known here.
    """
    processes = members(session, guard)
    shared.look(processes)
    if grace_s > 0 and session in processes:
        os.kill(session, signal.SIGTERM)
        _wait(lambda: [session] if process(session) else [], grace_s, reap)
    shared.look(members(session, guard))
    _wait(lambda: [_kill(pid) for pid in _without_trackers(session, guard)], KILLED_S, reap)
    _wait(lambda: list(members(session, guard)), TRACKER_S, reap)
    left = _wait(lambda: [_kill(pid) for pid in members(session, guard)], TRACKER_S, reap)
    shared.remove()
    remove_folders(directory)
    return left


def remove_folders(directory: Path) -> None:
    for folder in (TMP, SOCKETS):
        shutil.rmtree(directory / folder, ignore_errors=True)


def _without_trackers(session: int, guard: int | None) -> list[int]:
    return [pid for pid in members(session, guard) if TRACKER not in command_line(pid)]


def _kill(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid


def _wait(running: Callable[[], list[int]], patience_s: float, reap: Callable[[], object]) -> list[int]:
    """Call `running` until nothing does, or patience is over; returns what still does."""
    deadline = time.monotonic() + patience_s
    while True:
        reap()
        left = running()
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.02)


class ServerGuard:
    """One server, from its start to its end."""

    def __init__(self, directory: Path, parent: int) -> None:
        """`parent` is whet's process; its pipe is standard input, and standard output takes the lines for it."""
        self._directory, self._parent = directory, parent
        self._server = 0
        self._status: int | None = None
        self._engines: dict[int, ProcessLine] = {}
        self._shared = SharedFiles()

    def run(self, command: list[str]) -> None:
        """Start the server, wait for a reason to end it, end it."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        with contextlib.closing(os.fdopen(woken, "rb", 0)) as signals:
            try:
                self._server = self._start(command)
            except OSError as error:
                remove_folders(self._directory)
                self._tell(ending={"cause": f"{command[0]} cannot be started: {error.strerror}", "status": None})
                return
            self._tell(pid=self._server)
            cause = self._watch(signals)
            self._tell(ending={"cause": cause, "status": self._status})
            me = os.getpid()
            left = sweep(self._server, self._directory, self._shared, guard=me, grace_s=GRACE_S, reap=self._reap)
            self._tell(ended=left)

    def _start(self, command: list[str]) -> int:
        remove_folders(self._directory)
        for folder in (TMP, SOCKETS):
            (self._directory / folder).mkdir()
        me = process(os.getpid())
        assert me is not None
        started = subprocess.Popen(
            command,
            # The first variable is one that the server does not change: else it could not name its processes.
            env={GUARD: f"{os.getpid()}:{me.began}", **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=2,
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()),
        )
        started.returncode = 0  # it is collected in `_reap`, as orphans are
        return started.pid

    def _watch(self, signals: io.FileIO) -> str:
        """Until the server has to end; why, in words, "" where that is its own status or whet's wish."""
        next_look, pause = 0.0, SHORTEST_LOOK_S
        while True:
            ready = select.select([sys.stdin, signals], [], [], SHORTEST_LOOK_S)[0]
            self._reap()
            if self._status is not None or sys.stdin in ready or os.getppid() != self._parent:
                return ""
            if signals in ready and signal.SIGTERM in signals.read(512):
                return "its guard was sent SIGTERM"
            for pid, engine in self._engines.items():
                if (now := process(pid)) is None or now.began != engine.began:
                    return f"its process {engine.name} ({pid}) ended"
            if time.monotonic() >= next_look or self._shared.unknown():
                pause = SHORTEST_LOOK_S if self._look() else min(LONGEST_LOOK_S, 2 * pause)
                next_look = time.monotonic() + pause
                self._bound_log()

    def _look(self) -> bool:
        """Learn of new processes and shared memory; whether there were any."""
        processes = members(self._server, os.getpid())
        new_files = self._shared.look(processes)
        new = engines(processes).keys() - self._engines.keys()
        if new:
            self._engines |= {pid: processes[pid] for pid in new}
            self._tell(engines=sorted(self._engines))
        return new_files or bool(new)

    def _reap(self) -> None:
        """Collect those that have ended: the server, and orphans of it."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._server:
                    self._status = os.waitstatus_to_exitcode(status)

    def _bound_log(self) -> None:
        if os.fstat(2).st_size > LOG_BYTES:
            path = os.readlink("/proc/self/fd/2")
            with contextlib.suppress(FileNotFoundError):  # or it is deleted
                shutil.copyfile(path, f"{path}.1")
            os.truncate(2, 0)

    def _tell(self, **fields: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # whet is gone
            os.write(sys.stdout.fileno(), json.dumps(fields).encode() + b"\n")


def _end_with(guard: int) -> Callable[[], None]:
    """What the server's process does before it is one: from now on the kernel kills it when the guard is gone."""

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)

    return prepare


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    os.umask(0o077)
    ServerGuard(Path(sys.argv[1]), int(sys.argv[2])).run(sys.argv[3:])
