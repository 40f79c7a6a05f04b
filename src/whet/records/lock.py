"""Which process writes into a run's directory, and what that says about the state of the run.

A run that was killed still says `running` in its files. The lock on its directory shows that its process is gone: the
kernel releases it when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from whet.errors import RunError
from whet.system.untrusted import open_path

LOCK = ".lock"
LOOKS_S = 5.0
"""How long a writer waits for processes that look at its lock; each of them holds it for a moment (`is_locked`)."""
PAUSE_S = 0.005
DIED = "died"
ENDED = ("finished", "failed", "interrupted", DIED)
RESUMABLE = ("failed", "interrupted", DIED)
EndState = Literal["finished", "interrupted", "failed"]
"""How a process ends a run."""
EvaluationState = Literal["finished", "running", "unfinished"]
"""`unfinished`: it did not end, and no process works on it any more."""


class DirectoryLock:
    """Held by the one process that writes into a run's directory, whose id is in the file."""

    def __init__(
        self, directory: Path, doing: str = "evaluating into", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Take it. Raises `RunError` where another process has it; `doing` says in the message what for."""
        # A file of its own, open for writing: network file systems lock nothing else. Opened to append: its text is
        # the id of the other process until the lock is taken.
        self._file = (directory / LOCK).open("a+", encoding="utf-8")
        deadline = time.monotonic() + LOOKS_S
        while not _took(self._file, fcntl.LOCK_EX):
            # A writer's lock excludes a shared one, a look does not.
            if not _took(self._file, fcntl.LOCK_SH) or time.monotonic() >= deadline:
                self._file.close()
                raise RunError(f"{directory} is in use: another process is {doing} it. Wait for it, or stop it.")
            fcntl.flock(self._file, fcntl.LOCK_UN)
            sleep(PAUSE_S)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def _took(file: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(directory: Path) -> bool:
    """Whether some process writes into a run's directory."""
    try:
        with open_path(directory / LOCK) as file:
            return not _took(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def state_of(directory: Path, metadata: Mapping[str, Any]) -> str:
    """The state of a training run or a search by its files; `died` where it has not ended and has no process."""
    state = str(metadata.get("state") or "unknown")
    return DIED if state not in ("unknown", *ENDED) and not is_locked(directory) else state


def evaluation_state(directory: Path, metadata: Mapping[str, Any]) -> EvaluationState:
    """The state of an evaluation; without one in its metadata (other programs write none) it has finished."""
    if metadata.get("state", "finished") == "finished":
        return "finished"
    return "running" if is_locked(directory) else "unfinished"
