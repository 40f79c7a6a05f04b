"""`ClusterMember`: an engine of a pool, in an actor of a Ray cluster; `NodeEngine`: that engine, as the run uses it.

The run samples from it by HTTP, directly. Ray starts it, says when it has ended, and ends it. An actor belongs to a
bundle of the run's placement group: where its node is gone, Ray reserves the bundle on another, and the next start is
there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from whet.errors import EndpointDownError, EngineError, WhetError
from whet.inference.protocol import Engine, WeightUpdate, WrappedEngine
from whet.inference.remote.http_connection import HttpPool
from whet.inference.remote.remote_engine import RemoteEngine
from whet.inference.vllm.engine import VllmEngine
from whet.inference.vllm.members import headers
from whet.inference.vllm.server import READY_WITHIN_S, STOP_S
from whet.rl.cluster.engine_host import CALLS_AT_ONCE, EngineAddress, EngineHost, HostedEngine
from whet.rl.cluster.head_watch import head_is_gone, wait_for_lost_nodes
from whet.rl.cluster.weight_store import WeightStore

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
