"""Processes of a run: how they start, that none outlives the run, and which process an id means.

Process ids are reused; an id together with the time at which its process began is not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import BaseContext
from pathlib import Path

START_METHOD = "spawn"
"""From nothing. A fork, which Python and libraries choose on Linux, is not safe with torch's threads."""


def process_context() -> BaseContext:
    return get_context(START_METHOD)


def follow_parent() -> None:
    """In a child: leave Ctrl-C to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=end_with_parent, name="whet parent watch", daemon=True).start()


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
