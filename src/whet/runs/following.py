"""The log of a run, also while it grows: `whet train logs -f`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from whet.errors import RunError
from whet.runs.lock import is_locked

LOG = "run.log"
KEPT_FILES = 3
"""Files before the current one: run.log.1 is the newest of them."""
POLL_SECONDS = 0.25


def read_log(run: Path, *, follow: bool = False, wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Every line that is kept, the oldest first; with `follow` also what is written, until no process holds the run.

    A log that begins a new file is followed into it. Raises `RunError` where the run has no log.
    """
    path = run / "logs" / LOG
    if not path.is_file():
        raise RunError(f"{run} has no log: {path} is missing.")
    for number in range(KEPT_FILES, 0, -1):
        if (older := path.with_name(f"{LOG}.{number}")).is_file():
            yield from older.read_text(encoding="utf-8", errors="replace").splitlines()
    file = path.open(encoding="utf-8", errors="replace")
    begun = ""
    try:
        while True:
            running = follow and is_locked(run)  # checked before reading: what is written just before the end is read
            text = file.read()
            *lines, begun = (begun + text).split("\n")
            yield from lines
            if text:
                continue
            if _inode(path) not in (None, os.fstat(file.fileno()).st_ino):
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
            elif running:
                wait(POLL_SECONDS)
            else:
                yield from filter(None, [begun])
                return
    finally:
        file.close()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:  # between two files
        return None
