"""In a vLLM worker: the end of the worker, and of the EngineCore that started it, once the server's guard is gone.

That is for whet, guard and API server killed together, as `pkill -9 -f whet` does it: the rest would hold its memory
and its GPU for ever. Resource trackers then remove the shared memory. Standard library only, in the server's Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

VARIABLE = "WHET_VLLM_GUARD"
"""The guard: its number, and when it began, as `/proc` has it."""
LOOK_S = 1.0


def follow_guard() -> None:
    """Watch the guard from a thread, where there is one."""
    if guard := os.environ.get(VARIABLE):
        threading.Thread(target=_watch, args=guard.split(":"), name="whet guard watch", daemon=True).start()


def _watch(pid: str, began: str) -> None:
    pause = threading.Event()
    while _began(pid) == began:
        pause.wait(LOOK_S)
    parent = os.getppid()
    with contextlib.suppress(ProcessLookupError):
        if os.getsid(parent) == os.getsid(0):  # else this is an orphan, or the EngineCore itself
            os.kill(parent, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _began(pid: str) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
