"""One deployment as the process that serves it knows it, and the client that answers for it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from whet.clients.client import Client
from whet.clients.deltas import OnDelta
from whet.errors import ConfigError, Error, OverlongPromptError, RequestRefusedError, WhetError
from whet.gateway.wire import RequestError
from whet.service.deployments.models import ModelHost, OutOfMemory, Served
from whet.service.deployments.status import Health
from whet.types import Messages, Response, SamplingArgs, State, Tool

NEWEST = 0.2
"""Weight of the newest request in the mean of seconds."""
RETRY_S, MOST_RETRY_S = 30.0, 3600.0
"""Pause before one that failed is tried again; it doubles up to the second number."""


@dataclass(eq=False)
class Deployed:
    """The row, how far it is loaded, and how it does."""

    id: str
    owner: str
    model: str  # base:name
    full_model: str  # base:owner/name
    state: str
    host: ModelHost
    data: str  # the folder of the service, which no reason names
    reason: str = ""
    served: Served | None = None  # once its weights are exported
    health: Health = field(default_factory=Health)
    ended: bool = False
    work: asyncio.Task[None] | None = None  # what brings it up
    retry_at: float = 0.0
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        self.client = DeploymentClient(self)

    def fail(self, reason: str, now: float) -> None:
        reason = reason.replace(self.data, "DATA").rstrip(".")
        self.state, self.reason, self.served, self.retry_at = "failed", reason, None, now + self.retry_s
        self.retry_s = min(2 * self.retry_s, MOST_RETRY_S)
        self.note_error(reason)

    def note_error(self, said: str) -> None:
        self.health.last_error, self.health.last_error_at = said[:500], time.time()

    def current_health(self) -> Health:
        """With whether it is in memory now."""
        loaded = self.served is not None and self.host.loaded(self.served)
        if loaded != self.health.loaded:
            self.health.loaded, self.health.loaded_at = loaded, time.time() if loaded else None
        return self.health


class DeploymentClient(Client[Any, Any, Any, Any]):
    """Answers for one deployment, whose model is loaded first where it is not in memory."""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__(deployed)
        self._deployed = deployed

    async def get_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Tool] | None = None,
        *,
        state: State | None = None,
        on_delta: OnDelta | None = None,
        **kwargs: Any,
    ) -> Response:
        deployed = self._deployed
        if deployed.ended or deployed.served is None:
            raise RequestError(f"the deployment {model} was deleted", status=404, code="model_not_found")
        health, began = deployed.health, time.perf_counter()
        health.in_flight += 1
        try:
            async with AsyncExitStack() as stack:
                try:
                    client = await stack.enter_async_context(deployed.host.using(deployed.served))
                except WhetError as error:
                    self._not_loaded(error)
                    raise RequestError(f"{model} cannot be served now: {error}", status=503) from error
                listening: dict[str, Any] = {} if on_delta is None else {"on_delta": on_delta}
                response = await client.get_response(prompt, model, sampling_args, tools, **listening)
        except (RequestError, OverlongPromptError, ConfigError, RequestRefusedError):
            raise  # mistakes of the request
        except (Error, WhetError) as error:
            deployed.note_error(str(error))
            raise
        finally:
            health.in_flight -= 1
        seconds = time.perf_counter() - began
        health.seconds = seconds if health.seconds is None else (1 - NEWEST) * health.seconds + NEWEST * seconds
        return response

    def _not_loaded(self, error: WhetError) -> None:
        """What is wrong with its files is a failure of the deployment; what is short now, memory, is not."""
        if isinstance(error, OutOfMemory):
            self._deployed.note_error(str(error))
        else:
            self._deployed.fail(str(error), self._deployed.host.clock())
