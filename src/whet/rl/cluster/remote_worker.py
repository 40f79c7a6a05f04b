"""`RemoteWorker`: a worker for environments on a node of the cluster, as the pool of workers starts and ends it.

    pool ◀─socket pair─▶ thread ◀─TCP─▶ worker process ─▶ ended with ─▶ its actor

The pool wants its socket at once, and Ray takes a while to start an actor; so a thread waits for the worker, and passes
bytes between the two. A worker that does not come closes the pair, as one that has died does.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from whet.rl.cluster.environment_host import SECRET_BYTES, EnvironmentHost, MeetingPoint
from whet.rl.cluster.node_engine import PLACED_WITHIN_S, actor_line

PROVES_WITHIN_S = 10.0
PIECE = 256 << 10


class RemoteWorker:
    """See `whet.rollouts.workers.started.Started`."""

    pid = 0  # it is on another host

    def __init__(self, number: int, host: str, place: dict[str, Any]) -> None:
        """`host` is the address of this node, and `place` are the options of the worker's actor."""
        import ray

        self.socket, self._ours = socket.socketpair()
        self._fate, self._ended = "runs", threading.Event()
        self._listening = socket.create_server((host, 0))
        at = MeetingPoint(
            host,
            self._listening.getsockname()[1],
            secrets.token_bytes(SECRET_BYTES),
            secrets.token_bytes(SECRET_BYTES),
            tuple(sys.path),
            os.getcwd(),
        )
        self._actor = ray.remote(max_restarts=0, **place)(EnvironmentHost).remote()
        ends = self._actor.run.remote(at)
        self._begin(lambda: self._wait(ends), f"whet end of worker {number}")
        self._begin(lambda: self._bridge(at), f"whet connection of worker {number}")

    @property
    def fate(self) -> str:
        return self._fate

    def wait(self, timeout: float | None = None) -> bool:
        return self._ended.wait(timeout)

    def kill(self) -> None:
        """Its actor, and by that the worker with what it has started, within seconds."""
        import ray

        with suppress(ray.exceptions.RayError):
            ray.kill(self._actor)

    def close(self) -> None:
        self._listening.close()
        self._ours.close()

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

    def _bridge(self, at: MeetingPoint) -> None:
        """Wait for the worker, then pass on what either side sends, until one of them is closed."""
        with suppress(OSError), self._ours, self._met(at) as worker:
            worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._begin(lambda: _copy(self._ours, worker), "whet frames to a worker")
            _copy(worker, self._ours)

    def _met(self, at: MeetingPoint) -> socket.socket:
        """The connection to the worker. Raises `OSError` where none has come in time."""
        deadline = time.monotonic() + PLACED_WITHIN_S
        with self._listening:
            while True:
                self._listening.settimeout(max(0.0, deadline - time.monotonic()))
                found, _ = self._listening.accept()
                found.settimeout(PROVES_WITHIN_S)
                with suppress(OSError):
                    if hmac.compare_digest(found.recv(SECRET_BYTES, socket.MSG_WAITALL), at.from_worker):
                        found.sendall(at.from_run)
                        found.settimeout(None)
                        return found
                found.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
