"""Asking a running run to stop, and waiting until it has."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whet.errors import RunError
from whet.rl.stored.stored_run import ENDED, StoredRun, is_locked, open_run
from whet.rl.supervision.process_identity import began

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a run ended that was asked to."""

    run: Path
    state: str
    step: int
    checkpoint: int | None  # newest step that can be continued
    message: str
    resume: str | None


def stop_run(run: StoredRun, *, patience: float, clock: Callable[[], float] = time.monotonic) -> Stopped:
    """Send SIGTERM to the run's process, after making sure that it is, and wait up to `patience` seconds for its end.

    Raises `RunError` where there is nothing to stop, where the process cannot be told apart, or where it goes on.
    """
    pid = _process_of(run)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise RunError(f"{run.path}: process {pid} belongs to another user; stop it as that user.") from None
    deadline = clock() + patience
    while is_locked(run.path):
        if clock() >= deadline:
            raise RunError(
                f"{run.path}: process {pid} was asked to stop {patience:.0f} s ago and is still at it. It stops by "
                f"itself; to end it now: kill -9 {pid} (what was trained since the last checkpoint is trained again)."
            )
        time.sleep(LOOK_SECONDS)
    ended = open_run(run.path)
    good = [step for step, fault in ended.checkpoints() if fault is None]
    return Stopped(
        run.path,
        ended.state,
        ended.step,
        max(good, default=None),
        str(ended.status.get("last_error") or f"{ended.state} after step {ended.step} of {ended.max_steps}"),
        ended.resume,
    )


def _process_of(run: StoredRun) -> int:
    """The number of the process that trains in the run's directory."""
    if run.state in ENDED or not is_locked(run.path):
        how = f" Go on with it: {run.resume}" if run.resume else ""
        raise RunError(f"{run.path} is not running: its state is {run.state}.{how}")
    pid, host, started = (run.status.get(name) for name in ("pid", "host", "process_began"))
    if host not in (None, socket.gethostname()):
        raise RunError(f"{run.path} runs on {host}: stop it there.")
    if not isinstance(pid, int) or started is None or began(pid) != started:
        raise RunError(
            f"{run.path} is in use, but not by the process that its status.json names ({pid}); so none is sent a "
            "signal. Stop the one that uses it yourself: its number is in the run's .lock file."
        )
    return pid
