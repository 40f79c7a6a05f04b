"""`RemoteWorker`: a worker for environments on a node of the cluster, as the pool of workers starts and ends it.

    pool ◀─TCP─▶ worker process ─▶ ended with ─▶ its actor

Ray takes a while to start an actor; a thread waits for the worker to connect, and the pool waits for that. Where it
does not come, the pool gets a socket that is closed at the other end, as that of a worker that has died.

`EnvironmentHost`: in an actor, one worker process for environments, connected to the run by TCP.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from whet.rl.cluster.head_watch import end_with_head, head_is_gone
from whet.rl.cluster.node_engine import PLACED_WITHIN_S, actor_line
from whet.rollouts.workers.started import WorkerProcess

PROVES_WITHIN_S = 10.0
Stream = socket.socket


class RemoteWorker:
    """See `whet.rollouts.workers.started.StartedWorker`."""

    pid = 0  # it is on another host

    def __init__(self, number: int, host: str, actor_options: dict[str, Any]) -> None:
        """`host` is the address of this node, and `actor_options` are the options of the worker's actor."""
        import ray

        self._fate, self._ended = "runs", threading.Event()
        self._met = threading.Event()
        self._connection: Stream | None = None
        self._listening = socket.create_server((host, 0))
        at = MeetingPoint(
            host,
            self._listening.getsockname()[1],
            secrets.token_bytes(SECRET_BYTES),
            secrets.token_bytes(SECRET_BYTES),
            tuple(sys.path),
            os.getcwd(),
        )
        self._actor = ray.remote(max_restarts=0, **actor_options)(EnvironmentHost).remote()
        ends = self._actor.run.remote(at)
        self._begin(lambda: self._wait(ends), f"whet end of worker {number}")
        self._begin(lambda: self._meet(at), f"whet connection of worker {number}")

    @property
    def socket(self) -> Stream:
        self._met.wait()
        if self._connection is None:
            self._connection, other = socket.socketpair()
            other.close()
        return self._connection

    @property
    def fate(self) -> str:
        return self._fate

    def wait(self, timeout: float | None = None) -> bool:
        return self._ended.wait(timeout)

    def kill(self) -> None:
        """Its actor, and by that the worker with what it has started, within seconds."""
        import ray

        if not head_is_gone():
            with suppress(ray.exceptions.RayError):
                ray.kill(self._actor)

    def close(self) -> None:
        """It has ended, and its connection is the pool's."""

    def _begin(self, work: Callable[[], None], name: str) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()

    def _wait(self, ends: Any) -> None:
        """Until the worker has ended, or its actor or node."""
        import ray

        try:
            self._fate = ray.get(ends)
        except ray.exceptions.RayError as error:
            self._fate = f"is gone: {actor_line(error)}"
        self._ended.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # no worker comes any more

    def _meet(self, at: MeetingPoint) -> None:
        """The thread that waits for the worker."""
        with suppress(OSError):
            self._connection = self._proven(at)
        self._met.set()

    def _proven(self, at: MeetingPoint) -> Stream:
        """The connection to the worker. Raises `OSError` where none has come in time."""
        deadline = time.monotonic() + PLACED_WITHIN_S
        with self._listening:
            while not self._ended.is_set():
                self._listening.settimeout(max(0.0, deadline - time.monotonic()))
                connected, _ = self._listening.accept()
                connected.settimeout(PROVES_WITHIN_S)
                with suppress(OSError):
                    if hmac.compare_digest(connected.recv(SECRET_BYTES, socket.MSG_WAITALL), at.from_worker):
                        connected.sendall(at.from_run)
                        connected.setblocking(False)
                        return connected
                connected.close()
        raise ConnectionError("the worker has ended")


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
