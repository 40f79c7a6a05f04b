"""`ClusterMember`: an engine of a pool, in an actor of a Ray cluster; `NodeEngine`: that engine, as the run uses it.

The run samples from it directly. Ray starts it, says when it has ended, and ends it. An actor belongs to a
bundle of the run's placement group: where its node is gone, Ray reserves the bundle on another, and the next start is
there.

`EngineHost`: in an actor, one engine's server on this node, reachable for the run by TCP.

It is the server that a run on one machine has: the process of the embedded engine, or a vLLM server behind its guard.
Each ends with the actor's process, and that ends with the run: Ray ends the actors of a driver that is gone.

The embedded engine listens by TCP, and takes connections that prove to have its key (`remote_engine.py`).

`KeyedRelay`: the Unix socket of a vLLM server on a TCP port of this node, for connections that have the key.

A vLLM server listens on a Unix socket, since vLLM guards some of its paths only. On a cluster the run is on
another host. So the first request of each connection has to have the key in a header. Before that not a byte is passed
on, and after it all of them, as they are.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whet.errors import EndpointDownError, EngineError, WhetError
from whet.inference.protocol import Engine, WeightUpdate, WrappedEngine
from whet.inference.remote_engine import RemoteEngine
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.http_connection import HttpPool
from whet.inference.vllm.members import headers
from whet.inference.vllm.server import READY_WITHIN_S, STOP_S
from whet.rl.cluster.head_watch import end_with_head, head_is_gone, wait_for_lost_nodes
from whet.rl.cluster.weight_store import WeightStore
from whet.rl.storage.weight_directory import weights_directory
from whet.system.files import user_cache

_log = logging.getLogger(__name__)
PLACED_WITHIN_S = 120.0
"""Seconds for Ray to start an actor: its node may be gone, and no other have room."""


class ClusterMember:
    """See `whet.inference.pool.member.PoolMember`."""

    def __init__(self, hosted: HostedEngine, actor_options: Callable[[], dict[str, Any]], store: WeightStore) -> None:
        """`actor_options` gives the options of the actor: its bundle and what it reserves."""
        self.name = hosted.name
        self.address: EngineAddress | None = None
        self._hosted, self._actor_options, self._store = hosted, actor_options, store
        self._actor: Any = None
        self._watch: asyncio.Task[None] | None = None
        self._ended: str | None = None
        self._started = False

    async def start(self) -> Engine:
        import ray

        if self._started:
            await asyncio.to_thread(wait_for_lost_nodes)
        self._started = True
        self._ended = self.address = None
        host = ray.remote(max_concurrency=CALLS_AT_ONCE, max_restarts=0, **self._actor_options())(EngineHost)
        self._actor = actor = host.remote(self._hosted)
        try:
            await self._placed(actor)
            async with asyncio.timeout(READY_WITHIN_S):
                self.address = await actor.start.remote()
        except TimeoutError:
            raise EngineError(f"engine {self.name} was not ready within {READY_WITHIN_S:g} s") from None
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, WhetError) else EngineError(actor_line(error)) from None
        except ray.exceptions.RayError as error:
            raise EngineError(f"engine {self.name}: {actor_line(error)}") from None
        self._watch = asyncio.create_task(self._wait(actor), name=f"whet watch of engine {self.name}")
        assert self.address is not None
        return NodeEngine(self._engine(self.address), self._store, self.address.node)

    async def stop(self) -> None:
        if self._actor is None or head_is_gone():
            return
        import ray

        actor, self._actor = self._actor, None
        if self._watch is not None:
            self._watch.cancel()
        with suppress(ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                await actor.stop.remote()
        with suppress(ray.exceptions.RayError):
            ray.kill(actor)

    def close(self) -> None:
        """As `stop`, from outside of an event loop, at the end of a run: Ray ends what is left."""
        if self._actor is not None and not head_is_gone():
            import ray

            actor, self._actor = self._actor, None
            with suppress(ray.exceptions.RayError):
                ray.wait([actor.stop.remote()], timeout=STOP_S)
                ray.kill(actor)

    def failure(self) -> str | None:
        return self._ended

    async def _placed(self, actor: Any) -> None:
        import ray

        try:
            async with asyncio.timeout(PLACED_WITHIN_S):
                await actor.__ray_ready__.remote()
        except TimeoutError:
            ray.kill(actor)
            raise EngineError(
                f"the cluster has not started engine {self.name} within {PLACED_WITHIN_S:g} s: no node has room for "
                "it. See whet cluster check."
            ) from None

    async def _wait(self, actor: Any) -> None:
        """Until the server has ended, or the actor has."""
        import ray

        try:
            self._ended = await actor.wait.remote()
        except ray.exceptions.RayError as error:
            self._ended = actor_line(error)

    def _engine(self, at: EngineAddress) -> RemoteEngine | VllmEngine:
        if self._hosted.embedded:
            return RemoteEngine((at.host, at.port), at.key, gone=self._gone)
        server = self._hosted.server
        return VllmEngine(
            HttpPool((at.host, at.port), headers(at.key)),
            max_context=server.max_context,
            logprobs_mode=server.logprobs_mode,
            gone=self._gone,
        )

    def _gone(self, reason: str) -> Exception:
        return EndpointDownError(f"engine {self.name}: {self._ended or reason}")


class NodeEngine(WrappedEngine):
    """An engine of another node: its weights are brought there first."""

    def __init__(self, engine: RemoteEngine | VllmEngine, store: WeightStore, node: str) -> None:
        super().__init__(engine)
        self._store, self._node = store, node

    async def load_weights(self, update: WeightUpdate) -> None:
        await super().load_weights(await self._store.on_node(update, self._node))


def actor_line(error: Exception) -> str:
    """What Ray says of an actor that is gone, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "reason" in line.lower() or "died" in line.lower() or "cause" in line.lower()]
    return f"its actor has ended: {' '.join(causes or lines)[:300]}"


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
        server, port, key = self._embedded(host) if self._hosted.embedded else self._vllm(host)
        return EngineAddress(host, port, key, here.get_node_id(), (os.getpid(), server))

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

    def _embedded(self, host: str) -> tuple[int, int, str]:
        """Its process, port and key."""
        from whet.inference.model_names import resolve_model
        from whet.rl.supervision.engine_process import EngineProcess

        model = resolve_model(self._hosted.model)
        self._server = process = EngineProcess(model, self._directory, host=host, **self._hosted.embedded)
        process.engine(gone=EngineError)
        assert not isinstance(process.address, Path)
        return process.pid, process.address[1], process.key

    def _vllm(self, host: str) -> tuple[int, int, str]:
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
        self._relay = KeyedRelay(server.socket, host, server.key)
        return server.pid, self._relay.port, server.key


LONGEST_HEAD = 64 << 10
HEAD_WITHIN_S = 30.0
PIECE = 256 << 10
REFUSED = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class KeyedRelay:
    """Listens from a thread of its own until it is closed, or the process ends."""

    def __init__(self, socket: Path, host: str, key: str) -> None:
        """`key` is what requests have to have in `authorization`; `host` is the address to listen at."""
        self._socket, self._expected = socket, f"Bearer {key}".encode()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, host, 0, limit=LONGEST_HEAD, backlog=2048)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        threading.Thread(target=self._loop.run_forever, name="whet relay", daemon=True).start()

    def close(self) -> None:
        """Connections break off."""
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                async with asyncio.timeout(HEAD_WITHIN_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                if self._has_key(head):
                    await self._pass_on(head, reader, writer)
                else:
                    writer.write(REFUSED)
                    await writer.drain()
        finally:
            writer.close()

    def _has_key(self, head: bytes) -> bool:
        lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        values = [value.strip() for name, _, value in lines if name.strip().lower() == b"authorization"]
        return len(values) == 1 and hmac.compare_digest(values[0], self._expected)

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one of both sides is closed: then the other one is, which is how a request is given up."""
        from_server, to_server = await asyncio.open_unix_connection(str(self._socket))
        both: list[asyncio.Task[None]] = []
        try:
            to_server.write(head)
            both = [asyncio.create_task(_copy(reader, to_server)), asyncio.create_task(_copy(from_server, writer))]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            to_server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
