"""`EnvironmentHost`: in an actor, one worker process for environments, connected to the run by TCP."""

from __future__ import annotations

import hmac
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from whet.rl.cluster.head_watch import end_with_head
from whet.rollouts.workers.started import WorkerProcess

CONNECTS_WITHIN_S = 30.0
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where a worker finds its run, and how both know that they belong together. Ray brings it to the actor."""

    host: str
    port: int
    from_worker: bytes
    """What the worker sends first; valid once."""
    from_run: bytes
    """What it is answered. After it the worker trusts what it is sent, which it unpickles."""
    path: Sequence[str]
    """The run's import path: environments are found where the run finds them, where the node has that too."""
    directory: str
    """The run's working directory."""


class EnvironmentHost:
    """One worker, from its start to its end."""

    def run(self, at: MeetingPoint) -> str:
        """Start it, and wait until it has ended: how. Raises `OSError` where the run cannot be reached."""
        with socket.create_connection((at.host, at.port), timeout=CONNECTS_WITHIN_S) as connection:
            connection.sendall(at.from_worker)
            answer = connection.recv(SECRET_BYTES, socket.MSG_WAITALL)
            if not hmac.compare_digest(answer, at.from_run):
                raise ConnectionError(f"what answers at {at.host}:{at.port} is not the run")
            connection.settimeout(None)
            path = [*sys.path, *(entry for entry in at.path if entry not in sys.path and os.path.exists(entry))]
            directory = at.directory if os.path.isdir(at.directory) else None
            worker = WorkerProcess(connection, path=path, directory=directory)
        end_with_head(worker.kill)
        worker.wait()
        return worker.fate
