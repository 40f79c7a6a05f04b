"""The log of a run, as far as it goes and as it grows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from whet.errors import RunError
from whet.rl.monitors.log import KEPT_FILES, LOG
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.stored.stored_run import is_locked

LOOK_SECONDS = 0.25


def read_log(run: Path, *, follow: bool = False, wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Every line that is kept, the oldest first; with `follow` also what is written, until nobody is at the run.

    A log that begins a new file is followed into it. Raises `RunError` where the run has no log.
    """
    *older, path = _files(run)
    for whole in older:
        yield from whole.read_text(encoding="utf-8", errors="replace").splitlines()
    file = path.open(encoding="utf-8", errors="replace")
    begun = ""
    try:
        while True:
            running = follow and is_locked(run)  # asked before reading: what is written just before the end is read
            text = file.read()
            *lines, begun = (begun + text).split("\n")
            yield from lines
            if text:
                continue
            if _inode(path) not in (None, os.fstat(file.fileno()).st_ino):
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
            elif running:
                wait(LOOK_SECONDS)
            else:
                yield from filter(None, [begun])
                return
    finally:
        file.close()


def _files(run: Path) -> list[Path]:
    path = RunDirectory(run).logs / LOG
    older = [path.with_name(f"{LOG}.{number}") for number in range(KEPT_FILES, 0, -1)]
    if not path.is_file():
        raise RunError(f"{run} has no log: {path} is missing.")
    return [*(file for file in older if file.is_file()), path]


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:  # between two files
        return None
