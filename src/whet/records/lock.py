"""Which process writes into a run's directory, and what that says about the state of the run.

A run that was killed still says `running` in its files. The lock on its directory shows that its process is gone: the
kernel releases it when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

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
        taken = take(directory / LOCK, sleep, mode=0o666)  # other users may look whether a run goes on
        if taken is None:
            raise RunError(f"{directory} is in use: another process is {doing} it. Wait for it, or stop it.")
        self._file = os.fdopen(taken, "r+b", buffering=0)
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode())

    def release(self) -> None:
        self._file.close()


def take(lock: Path, sleep: Callable[[float], None] = time.sleep, mode: int = 0o600) -> int | None:
    """The descriptor of a lock that is now this process's; None where a process has it. Raises `OSError`.

    The file is made with `mode` where it is not there. Closing the descriptor, also by ending, releases it; a
    child that inherits it holds it too.
    """
    # A file of its own, open for writing: network file systems lock nothing else. Its text is that of the other
    # process until the lock is taken.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        deadline = time.monotonic() + LOOKS_S
        while not _took(descriptor, fcntl.LOCK_EX):
            # A writer's lock excludes a shared one, a look does not.
            if not _took(descriptor, fcntl.LOCK_SH) or time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            sleep(PAUSE_S)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def taken(lock: Path) -> Iterator[bool]:
    """Hold a lock inside the block, if it was free: whether it was. Raises `OSError` where it cannot be made."""
    descriptor = take(lock)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _took(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(lock: Path) -> bool:
    """Whether a process has a lock. A look excludes no other look."""
    try:
        with open_path(lock) as file:
            return not _took(file.fileno(), fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def is_locked(directory: Path) -> bool:
    """Whether some process writes into a run's directory."""
    return is_held(directory / LOCK)


def state_of(directory: Path, metadata: Mapping[str, Any]) -> str:
    """The state of a training run or a search by its files; `died` where it has not ended and has no process."""
    state = str(metadata.get("state") or "unknown")
    return DIED if state not in ("unknown", *ENDED) and not is_locked(directory) else state


def evaluation_state(directory: Path, metadata: Mapping[str, Any]) -> EvaluationState:
    """The state of an evaluation; without one in its metadata (other programs write none) it has finished."""
    if metadata.get("state", "finished") == "finished":
        return "finished"
    return "running" if is_locked(directory) else "unfinished"
