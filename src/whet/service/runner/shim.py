"""`python -m whet.service.runner.shim ATTEMPT`: starts one attempt, or guards one whose shim was killed, to its end.

A process in a session of its own, which knows nothing of the database and outlives runner and service. It reads its
plan from standard input (secrets are in it, so it is in no file and no command line), records who runs, keeps what the
run prints within bounds, passes SIGTERM on, and writes `exit.json`.

A run begins only after its identity is on disk: its process first waits for a word on its standard input, and ends
where that is closed. So a shim that is killed has started nothing that is not known. The run's output goes into a named
pipe that the run itself holds open for reading, so that printing is no error while no shim reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from whet.records.lock import is_held, take
from whet.sandboxes.bubblewrap.seccomp import filter_for
from whet.sandboxes.network.allow_list import PROXY_PORT
from whet.service.runner.folders import AttemptFolder, read_object
from whet.service.runner.limits import LimitWatch, RunLimits
from whet.service.runner.output import BoundedLog
from whet.system.children import began, in_session, kill, kill_group, this_process, undumpable
from whet.system.files import write_whole

GATE = [sys.executable, "-I", "-S", str(Path(__file__).with_name("gate.py"))]
"""The run's process says that it is there, waits to be let through, takes its secrets, and becomes the command."""
MARK = "WHET_ATTEMPT"
"""Variable of a run's processes: the run and the number of the attempt."""
POLL_S = 0.1
"""Between two looks at the run: what a control group does not count is counted then."""
LOCK_TRIES, LOCK_PAUSE_S = 50, 0.1
RETRY_S = 2.0
NOT_STARTED = 127  # as shells say it
PIECE = 1 << 16
PIPE_BYTES = 1 << 20
"""What a run may print while no shim reads, before it waits for one."""


@dataclass(frozen=True)
class ShimPlan:
    """What a runner hands to a shim on standard input."""

    command: list[str]
    """Of the run, behind the words that isolate it; `GATE_HERE` is where the gate belongs."""
    directory: str
    environment: dict[str, str]
    secrets: dict[str, str] = field(default_factory=dict)
    secrets_file: str | None = None
    """Where the run finds them, as seen by it; on this machine where the run is not isolated."""
    sweep: bool = True
    """Whether what is left of the run's session is killed at its end; with a process table of its own nothing is."""
    patience_s: float = 600.0
    """From the first request to stop until a further one kills."""
    limits: dict[str, int] | None = None
    """The fields of `RunLimits`; None: none."""
    network: list[str] | None = None
    """What a run with a network of its own may reach besides public addresses; None: it has that of the machine."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further fields of attempt.json."""

    def dumps(self) -> bytes:
        return json.dumps(asdict(self)).encode()


GATE_HERE = "{gate}"


class Shim:
    """One attempt, guarded by this process, which holds its lock."""

    def __init__(self, folder: AttemptFolder, plan: ShimPlan, known: dict[str, Any]) -> None:
        self._folder, self._plan, self._identity = folder, plan, known
        self._stop_at: float | None = None
        self._signals = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None  # where there is no process of this one's
        self._proxy: subprocess.Popen[bytes] | None = None
        self._listening: int | None = None  # the socket that the proxy serves
        self._exceeded: str | None = None
        self._watch: LimitWatch | None = None
        if plan.limits is not None:
            group = known.setdefault("group", f"{os.getpid()}-{self._mark.replace('/', '-')}")
            self._watch = LimitWatch(RunLimits(**plan.limits), group, folder.path.parents[1])
        self._log = BoundedLog(folder.output, plan.secrets)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(folder.pipe, 0o600)
        self._pipe = os.open(folder.pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # above what the system allows
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def _mark(self) -> str:
        return f"{self._identity.get('run_id')}/{self._identity.get('number')}"

    def start(self) -> None:
        """Start the run; its identity is on disk before it does anything."""
        life = take(self._folder.life_lock)
        if life is None:
            raise RuntimeError(f"{self._folder.life_lock} is held by another process")
        output = os.open(self._folder.pipe, os.O_RDWR | os.O_CLOEXEC)
        ours, theirs = socket.socketpair()
        if hasattr(socket, "SO_PASSCRED"):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        gate = [*GATE, str(PROXY_PORT if self._plan.network is not None else 0)]
        at = self._plan.command.index(GATE_HERE)
        words = [*self._plan.command[:at], *gate, *self._plan.command[at + 1 :]]
        environment = {**self._plan.environment, MARK: self._mark}
        if self._plan.secrets and self._plan.secrets_file is not None:
            environment["WHET_SECRETS_FILE"] = self._plan.secrets_file
        try:
            self._process = subprocess.Popen(
                words,
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                cwd=self._plan.directory,
                env=environment,
                pass_fds=(life,),
                process_group=0,
            )
        except OSError as error:
            self._log.write(f"the run could not be started: {error}\n".encode())
            self._code = NOT_STARTED
            return
        finally:
            theirs.close()
            os.close(output)
            os.close(life)
        with ours:
            pid = self._ready(ours)
            if pid is None:
                return  # it ended before it was ready, and has printed why
            self._record(run={"pid": pid, "process_began": began(pid)}, session=own_session(), top=self._process.pid)
            if self._watch is not None:
                self._watch.enter(pid)
            self._serve_network()
            with contextlib.suppress(OSError):
                ours.sendall(json.dumps(self._for_gate()).encode() + b"\n")
                ours.shutdown(socket.SHUT_WR)

    def _for_gate(self) -> dict[str, Any]:
        """What gate.py reads."""
        isolated = not self._plan.sweep
        # The kernel counts processes by user, from 5.14 on by namespace: a user that has others gets no such limit.
        alone = isolated and (os.geteuid() == 0 or _kernel() >= (5, 14))
        rlimits = {} if self._plan.limits is None else RunLimits(**self._plan.limits).rlimits(alone)
        code = filter_for(os.uname().machine, run=True) if isolated else None
        return {"secrets": self._plan.secrets, "rlimits": rlimits, "filter": (code or b"").hex()}

    def _serve_network(self) -> None:
        """Start the proxy of the run's network, or start it again."""
        run = self._identity["run"]
        if self._listening is None or self._plan.network is None or run["process_began"] is None:
            return
        words = [str(self._listening), str(run["pid"]), run["process_began"], *self._plan.network]
        self._proxy = subprocess.Popen(
            [sys.executable, "-m", "whet.service.runner.network", *words],
            stdin=subprocess.DEVNULL,
            pass_fds=(self._listening,),
            cwd="/",
        )

    def _ready(self, channel: socket.socket) -> int | None:
        """The id, as this process sees it, of the process that waits at the gate; None where it has ended."""
        assert self._process is not None
        while not select.select([channel], [], [], POLL_S)[0]:
            self._drain()
        size = socket.CMSG_SPACE(struct.calcsize("3i")) + socket.CMSG_SPACE(struct.calcsize("i"))
        data, ancillary, _, _ = channel.recvmsg(16, size)
        if not data:
            return None
        pid = self._process.pid
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, getattr(socket, "SCM_CREDENTIALS", None)):
                pid = int(struct.unpack("3i", content[: struct.calcsize("3i")])[0])
            elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._listening = int(struct.unpack("i", content[: struct.calcsize("i")])[0])
        return pid

    def _record(self, **fields: Any) -> None:
        self._identity |= fields
        self._persist(self._folder.identity, self._identity)

    def _persist(self, path: Path, content: dict[str, Any]) -> None:
        """Write it, however long the disk is full; the run's end must not be forgotten."""
        while True:
            try:
                write_whole(path, json.dumps(content) + "\n")
                return
            except FileNotFoundError:  # the folder was deleted: nothing is left to be said
                return
            except OSError:
                self._drain()
                time.sleep(RETRY_S)

    def follow(self) -> None:
        """Guard the run until none of its processes is left, then say how it ended."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(reading, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        watched = [reading, self._pipe]
        if (pid := self._watched()) is not None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                watched.append(os.pidfd_open(pid))
        while not self._ended():
            self._pass_signals_on()
            self._look()
            ready = select.select(watched, [], [], POLL_S)[0]
            if reading in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(reading, 512)
            self._drain()
            if set(ready) - {reading, self._pipe}:
                watched = watched[:2]
        self._end()

    def _look(self) -> None:
        """End a run that takes more than it may, and keep its network."""
        if self._proxy is not None and self._proxy.poll() is not None and self._process is not None:
            self._serve_network()
        if self._watch is not None and self._exceeded is None:
            self._exceeded = self._watch.exceeded(self._identity.get("top"))
        if self._exceeded is not None:
            self._kill(signal.SIGKILL)

    def _kill(self, number: int) -> None:
        run = self._identity.get("run")
        if run is not None and began(run["pid"]) == run["process_began"]:
            kill(run["pid"], number)

    def _watched(self) -> int | None:
        if self._process is not None:
            return self._process.pid
        run = self._identity.get("run") or {}
        return run.get("pid") if began(run.get("pid", -1)) == run.get("process_began") else None

    def _ended(self) -> bool:
        if self._process is not None:
            return self._process.poll() is not None
        run = self._identity.get("run")
        if self._plan.sweep and (run is None or began(run["pid"]) != run["process_began"]):
            self._sweep()  # what it left behind would hold the lock
        return not is_held(self._folder.life_lock)

    def _end(self) -> None:
        code = self._process.returncode if self._process is not None else self._code
        if self._plan.sweep:
            self._sweep()
        self._drain()
        self._log.close()
        if self._plan.sweep and self._plan.secrets_file is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._plan.secrets_file)
        number = None
        if code is not None:  # 128 and the number is what a shell and bubblewrap make of a signal
            number = -code if code < 0 else code - 128 if 128 < code < 160 else None
        ended: dict[str, Any] = {"code": code, "signal": number, "ended_at": time.time(), "dropped": self._log.dropped}
        if self._watch is not None:
            self._exceeded = self._exceeded or self._watch.exceeded(None, last=True)
            self._watch.close()
        if self._exceeded is not None:
            ended["exceeded"] = self._exceeded
        self._persist(self._folder.exit, ended)
        with contextlib.suppress(OSError):
            self._folder.pipe.unlink()

    def _sweep(self) -> None:
        """Kill what the run left behind: the processes of the session in which it was started."""
        session = self._identity.get("session")
        if session is None:
            return
        if self._process is not None and not Path("/proc/self/stat").exists():  # macOS
            kill_group(self._process.pid)
            return
        mark = f"{MARK}={self._mark}".encode()
        for pid in set(in_session(session)) - {os.getpid(), session}:
            with contextlib.suppress(OSError):
                # The number of an earlier session may be of another by now; what a run starts has its mark.
                if session == os.getpid() or mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    def _drain(self) -> None:
        """What is in the pipe, but at most a few pieces: a run may print without end."""
        for _ in range(64):
            try:
                data = os.read(self._pipe, PIECE)
            except BlockingIOError:
                return
            self._log.write(data)

    def stop_signal(self, *_: Any) -> None:
        self._signals += 1

    def _pass_signals_on(self) -> None:
        """The first is the run's stop, with a checkpoint. One that comes after all patience kills."""
        if not self._signals:
            return
        self._signals = 0
        run = self._identity.get("run")
        if run is None or began(run["pid"]) != run["process_began"]:
            return
        now = time.monotonic()
        if self._stop_at is None:
            self._stop_at = now
            if self._identity.get("stop_sent"):  # by a shim before this one
                return
            self._record(stop_sent=True)
            number = signal.SIGTERM
        elif now - self._stop_at >= self._plan.patience_s:
            number = signal.SIGKILL
        else:
            return
        self._kill(number)


def _kernel() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))


def own_session() -> int | None:
    """This process's session, if it is the one that began it, as a runner starts it: else others are in it."""
    session = os.getsid(0)
    return session if session == os.getpid() else None


def main(folder: AttemptFolder) -> int:
    undumpable()
    text = sys.stdin.buffer.read()
    if not text:  # the runner was killed before it had handed over the plan: nothing was started
        return 1
    plan = ShimPlan(**json.loads(text))
    for _ in range(LOCK_TRIES):  # a look at the lock takes it for a moment
        if take(folder.shim_lock) is not None:
            break
        time.sleep(LOCK_PAUSE_S)
    else:
        return 0  # another one guards it
    if folder.exit.exists():
        return 0  # it was given up meanwhile
    known = read_object(folder.identity)
    shim = Shim(folder, plan, known | plan.facts | {"shim": this_process()})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, shim.stop_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    begun = known.get("run") is not None or is_held(folder.life_lock)
    shim._record()
    if not begun:
        shim.start()
    shim.follow()
    return 0


if __name__ == "__main__":
    sys.exit(main(AttemptFolder(Path(sys.argv[1]))))
