"""What the processes of a review may take together: memory and their number.

A control group where one can be made, and everywhere a thread that counts and ends them. The limits of each process by
itself are set in it (`observe.py`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import threading

from whet.runs.process import family, memory_share, own_memory
from whet.sandboxes.bubblewrap import cgroups

MEMORY_BYTES = 8 << 30  # or half of what the machine has, whichever is less
PROCESSES = 512  # threads among them, where a control group counts
MARGIN = 64  # so that a fork bomb is ended rather than left to try again until its time is up
LOOK_S = 0.05
_ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done 2>/dev/null; shift; exec "$@"'
_numbers = itertools.count(1)


@functools.cache
def memory_bytes() -> int:
    return min(MEMORY_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


class Limits:
    """The limits of one process and all that it starts. `command` puts it into the group before its first step."""

    def __init__(self) -> None:
        name = f"{os.getpid()}-check-{next(_numbers)}"
        self._group = cgroups.make(name, memory_bytes(), PROCESSES + MARGIN, float(os.cpu_count() or 1))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._said: str | None = None

    def command(self, command: list[str]) -> list[str]:
        if self._group is None:
            return command
        folders = sorted({str(folder) for folder in self._group.directories.values()})
        return ["/bin/sh", "-c", _ENTER, "sh", *folders, "--", *command]

    def watch(self, pid: int) -> None:
        """Count from now on, and end the session of `pid` with all that it started when it is too much."""
        self._thread = threading.Thread(target=self._look, args=(pid,), daemon=True)
        self._thread.start()

    def end(self) -> str | None:
        """Nothing of it is left; which limit was reached, if one was."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._group is None:
            return self._said
        if self._group.killed_for_memory():
            self._said = self._said or _memory_words()
        self._group.end()
        return self._said

    def _look(self, pid: int) -> None:
        while not self._stop.wait(LOOK_S):
            found = set(itertools.islice(family(pid), PROCESSES + 1))
            if len(found) > PROCESSES:
                self._said = f"it started more than {PROCESSES} processes"
            elif sum(map(own_memory, found)) > memory_bytes() and sum(map(memory_share, found)) > memory_bytes():
                self._said = _memory_words()
            if self._said is not None:
                for one in found:
                    _kill(one)
                return


def _memory_words() -> str:
    return f"it took more than {memory_bytes() / (1 << 30):.3g} GiB of memory"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
