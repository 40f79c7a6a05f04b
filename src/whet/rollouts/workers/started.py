"""Where a worker runs: a process of this host, over a socket pair. Other places are other `Starter`s.

    Starter(number) ──▶ StartedWorker: a stream socket to the worker, how to wait for it, end it, and say how it ended

The worker's side of any place is `process.serve`: it works for the session at the other end of a stream socket. A
starter for another host connects a TCP socket, proves to both ends that they belong together before the first frame,
and calls `serve` there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from whet.system.children import how_it_ended, kill_group, start

# `-c` and not `-m`, with the session's own import path: a folder that happens to be called like a module of ours in the
# working directory is not imported in its place, and environments are found where the session found them.
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from whet.rollouts.workers.process import main; main()"
STDERR = 2


class StartedWorker(Protocol):
    """A worker that was started. Only `socket` and `wait` may block; they are called in threads."""

    @property
    def socket(self) -> socket.socket:
        """The session's end of the stream to it. May block until it is connected; an end without another if it ends."""

    @property
    def pid(self) -> int:
        """Its process, on its host."""

    @property
    def fate(self) -> str:
        """How it ended, after "the worker": `was killed by SIGKILL`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended, with all it needed of its host; False after `timeout` seconds."""

    def kill(self) -> None:
        """End it at once, with the processes that it has started."""

    def close(self) -> None:
        """It has ended: free what it had here."""


Starter: TypeAlias = Callable[[int], StartedWorker]
"""Starts the worker with this number. Raises `OSError` where it cannot. Called on the event loop, so it is quick."""


class WorkerProcess:
    """A process of this host, in a session of its own: Ctrl-C in a terminal does not reach it."""

    def __init__(
        self, theirs: socket.socket, *, path: Sequence[str] | None = None, directory: str | None = None
    ) -> None:
        """`theirs` is its end of the stream, which the caller may close then.

        `path` is what it imports from, and `directory` where it works, both by default those of this process. Raises
        `OSError`.
        """
        reading, self._lifeline = os.pipe()
        try:
            imports = json.dumps(list(sys.path if path is None else path))
            self._process = start(
                [sys.executable, "-c", BOOT, imports, str(theirs.fileno()), str(reading)],
                pass_fds=(theirs.fileno(), reading),
                cwd=directory,
                stdout=STDERR,  # what an environment prints does not mix with a summary as JSON
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fate(self) -> str:
        code = self._process.returncode
        if code is None:
            return "runs"
        return how_it_ended(code) + (", as when memory runs out" if code == -signal.SIGKILL else "")

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        kill_group(self._process.pid)

    def close(self) -> None:
        os.close(self._lifeline)


class LocalProcess(WorkerProcess):
    """A worker of the session's own host."""

    def __init__(self, number: int) -> None:
        self.socket, theirs = socket.socketpair()
        try:
            super().__init__(theirs)
        except OSError:
            self.socket.close()
            raise
        finally:
            theirs.close()
