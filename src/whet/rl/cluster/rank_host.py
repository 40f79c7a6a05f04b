"""`RankHost`: in an actor, one rank of the learner.

The rank computes in a thread of its own, the same for all calls, since what torch has chosen, such as a device, belongs
to a thread. Other calls of the actor are answered meanwhile: what it does, which is its heartbeat too.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.rl.cluster.head_watch import end_with_head
from whet.rl.cluster.shipped_modules import Source, import_from
from whet.rl.cluster.weight_store import sees
from whet.rl.learner.ranks.rank_body import RankBody
from whet.rl.learner.ranks.rank_group import Answer

CALLS_AT_ONCE = 3
"""Threads of the actor: one waits for the rank, one says what it does, one is for what comes before it is made."""
GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""


@dataclass(frozen=True, slots=True)
class RankLook:
    """What a rank does."""

    phase: str
    phases: int
    phase_s: float
    """Seconds since it named the phase."""


class RankHost:
    """See `RankBody`."""

    def __init__(self, rank: int, sources: Mapping[str, Source]) -> None:
        import_from(sources)
        self._lock = threading.Lock()
        self._phase, self._phases, self._since = "starting its process", 0, time.monotonic()
        self._body = RankBody(rank, self._begin)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"whet rank {rank}")
        end_with_head(lambda: None)

    def about(self) -> tuple[str, int, int]:
        """Address of the node, number of the process, a port that is free there."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket() as listening:
            listening.bind((address, 0))
            return address, os.getpid(), listening.getsockname()[1]

    def sees(self, directory: Path, name: str, token: str) -> bool:
        """Whether a file that the run has left is here, too."""
        return sees(directory / name, token)

    def make(self, model: str, options: Mapping[str, Any]) -> Answer:
        """As `RankBody`; `model` is a name or a directory of this node."""
        import ray

        interface = interface_of(ray.util.get_node_ip_address())
        for library in ("GLOO", "NCCL"):  # which would else choose by the host's name
            if interface is not None:
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
        return self._thread.submit(self._make, model, options).result()

    def call(self, verb: str, arguments: tuple[Any, ...]) -> Answer:
        return self._thread.submit(self._body.call, verb, arguments).result()

    def look(self) -> RankLook:
        with self._lock:
            return RankLook(self._phase, self._phases, time.monotonic() - self._since)

    def _make(self, model: str, options: Mapping[str, Any]) -> Answer:
        from whet.errors import WhetError
        from whet.inference.model_names import resolve_model
        from whet.rl.learner.ranks.rank_body import as_raised

        try:
            path = resolve_model(model)
        except WhetError as error:
            return Answer(self._body.rank, raised=as_raised(error))
        return self._body.make(path, options)

    def _begin(self, phase: str) -> None:
        with self._lock:
            self._phase, self._phases, self._since = phase, self._phases + 1, time.monotonic()


def interface_of(address: str) -> str | None:
    """The network interface with an IPv4 address; None where it is not known, as on other systems than Linux."""
    if address.startswith("127."):
        return "lo" if sys.platform == "linux" else "lo0"
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
