"""`EngineHost`: in an actor, one engine's server on this node, reachable for the run by TCP.

It is the server that a run on one machine has: the process of the embedded engine, or a vLLM server behind its guard.
Each ends with the actor's process, and that ends with the run: Ray ends the actors of a driver that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whet.errors import EngineError
from whet.rl.cluster.head_watch import end_with_head
from whet.rl.cluster.relay import KeyedRelay
from whet.rl.storage.weight_directory import weights_directory
from whet.system.files import user_cache

_log = logging.getLogger(__name__)
CALLS_AT_ONCE = 4
"""Threads of the actor: one waits for the end of the server, one may be starting or stopping it."""
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class HostedEngine:
    """What an actor is to start."""

    name: str
    model: str
    """Name or directory, as each node finds it."""
    embedded: Mapping[str, Any] = field(default_factory=dict)
    """Options of `EngineProcess`; empty: a vLLM server."""
    server: Any = None
    """`ServerOptions` of a vLLM server; its `python` is looked for on the node."""
    python: str | None = None
    """`[inference] python`."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine answers, and with which key."""

    host: str
    port: int
    key: str
    node: str
    """Ray's id of it."""
    pids: tuple[int, ...]
    """Of the actor, and of the server that it has started."""


class EngineHost:
    """One start of one engine."""

    def __init__(self, hosted: HostedEngine) -> None:
        self._hosted = hosted
        self._context = weights_directory()  # private, short of name, and removed by the next one after a kill
        self._directory = self._context.__enter__()
        self._server: Any = None
        self._relay: KeyedRelay | None = None
        self._stopped = threading.Event()
        end_with_head(self.stop)

    def start(self) -> EngineAddress:
        """Start the server and wait until it answers. Raises `WhetError`."""
        import os

        import ray

        here = ray.get_runtime_context()
        host = ray.util.get_node_ip_address()
        server, socket, header, key = self._embedded() if self._hosted.embedded else self._vllm()
        value = f"Bearer {key}" if header == "authorization" else key
        self._relay = KeyedRelay(socket, host, header, value)
        return EngineAddress(host, self._relay.port, key, here.get_node_id(), (os.getpid(), server))

    def wait(self) -> str | None:
        """Why the server has ended, once it has; None where it was stopped."""
        while not self._stopped.wait(LOOK_S):
            if self._server is not None and (cause := self._server.failure()) is not None:
                return str(cause)
        return None

    def stop(self) -> None:
        """End the server, and wait until nothing of it is left."""
        self._stopped.set()
        if self._relay is not None:
            self._relay.close()
        if self._server is not None:
            self._server.close()
        self._context.__exit__(None, None, None)

    def _embedded(self) -> tuple[int, Path, str, str]:
        from whet.inference.model_names import resolve_model
        from whet.inference.remote.engine_wire import KEY_HEADER
        from whet.rl.supervision.engine_process import EngineProcess

        process = EngineProcess(resolve_model(self._hosted.model), self._directory, **self._hosted.embedded)
        self._server = process
        process.engine(gone=EngineError)
        return process.pid, process.socket, KEY_HEADER, process.key

    def _vllm(self) -> tuple[int, Path, str, str]:
        from whet.inference.model_names import resolve_model
        from whet.inference.vllm.interpreter import find_vllm
        from whet.inference.vllm.members import start_server

        python = find_vllm(None if self._hosted.python is None else Path(self._hosted.python)).path
        self._server = server = start_server(
            f"engine {self._hosted.name}",
            resolve_model(self._hosted.model),
            self._directory / "s",
            replace(self._hosted.server, python=python),
            log=user_cache("vllm") / "logs" / f"engine-{self._hosted.name}.log",
        )
        asyncio.run(server.ready())
        assert server.pid is not None
        return server.pid, server.socket, "authorization", server.key
