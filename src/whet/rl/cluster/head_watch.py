"""Notices that the head of a Ray cluster is gone, in the run and in its actors, and that a node is, before a restart.

Ray's own client tries again for a minute and then ends the process, with the run's records as they are; what it has
started on nodes ends minutes later. Here a thread connects to the head once a second. Where that fails for `GONE_S`
the run is stopped with one sentence, and each actor ends itself with what it holds.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LOOK_S = 1.0
GONE_S = 8.0
"""Seconds in which no connection is possible: a head that is restarted in place is back by then."""
ENDS_WITHIN_S = 30.0
"""Seconds for an actor to remove what it holds."""
LOST_WITHIN_S = 90.0
"""Seconds for Ray to notice that a node is lost."""
ANSWERS_S = 2.0
_gone_here = threading.Event()
"""Ray has one connection for a process."""


class HeadWatch:
    """A thread that watches the head at `address`, "host:port", until `close`."""

    def __init__(
        self,
        address: str,
        on_gone: Callable[[str], object] | None = None,
        *,
        look_s: float = LOOK_S,
        gone_s: float = GONE_S,
    ) -> None:
        """`on_gone` is called once, from the thread, with a sentence; set later, it is called at once."""
        self.on_gone = on_gone
        self._address, self._look_s, self._gone_s = address, look_s, gone_s
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="whet head watch", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        last = time.monotonic()
        while time.monotonic() - last <= self._gone_s:
            if self._closed.wait(self._look_s):
                return
            if _answers(self._address, self._gone_s):
                last = time.monotonic()
        _gone_here.set()
        while self.on_gone is None:
            if self._closed.wait(self._look_s):
                return
        self.on_gone(f"the head of the Ray cluster ({self._address}) is gone")


def head_is_gone() -> bool:
    """Whether it is, so that no call to Ray may be waited for any more."""
    return _gone_here.is_set()


@contextmanager
def head_watched() -> Iterator[HeadWatch]:
    """The head of the cluster that this process is connected to is watched until the block ends."""
    import ray

    _gone_here.clear()
    atexit.register(_exit_without_ray)
    watch = HeadWatch(ray.get_runtime_context().gcs_address)
    try:
        yield watch
    finally:
        watch.close()


def wait_for_lost_nodes(within_s: float = LOST_WITHIN_S) -> None:
    """Wait until Ray knows of each node that does not answer that it is lost; before, it would start actors there."""
    import ray

    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not head_is_gone():
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if all(_answers(f"{one['NodeManagerAddress']}:{one['NodeManagerPort']}", ANSWERS_S) for one in nodes):
            return
        time.sleep(LOOK_S / 2)


def end_with_head(last: Callable[[], object]) -> None:
    """In an actor's process: once the head is gone, call `last` and end the process."""
    import ray

    def end(_: str) -> None:
        ending = threading.Thread(target=last, daemon=True)
        ending.start()
        ending.join(ENDS_WITHIN_S)
        os._exit(1)

    HeadWatch(ray.get_runtime_context().gcs_address, end)


def _exit_without_ray() -> None:
    """At the end of a process that has lost the head: Ray's client would wait for it, or crash."""
    if head_is_gone():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(1)


def _answers(address: str, timeout_s: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except OSError:
        return False
    return True
