"""The gateway's interfaces over the sampling engine: OpenAI's at `/oai/api`, Anthropic's at `/anthropic/api`.

Models are the base by its name, and weights saved for sampling by their path, alone or after the base's name and a
semicolon. Keys are those of the training API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from starlette.concurrency import run_in_threadpool

from whet.gateway.app import Gateway
from whet.gateway.guard import ANY, Hosts, Visitor
from whet.gateway.wire import RequestError
from whet.hub.domain.access import identify
from whet.hub.errors import HubError
from whet.inference.policy_client import PolicyClient
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WeightUpdate
from whet.tinker.api.answers import kept
from whet.tinker.api.call import KEY, TRAIN, owner_of
from whet.tinker.api.sampling import saved_to_sample
from whet.tinker.sampling import SampledState, Sampling
from whet.tinker.server import TinkerServer
from whet.tinker.storage.tables import TinkerState
from whet.types import Response

MOUNTS = ("/oai/api", "/anthropic/api")
LISTED = 1000
"""Saved weights in a list of models: the newest ones."""


def inference_gateway(server: TinkerServer, sampling: Sampling) -> Gateway:
    """The gateway of a server that samples. It answers for any host: no page has a key."""
    return Gateway(access=_Access(server, sampling), hosts=Hosts(frozenset({ANY})))


class _Access:
    """See `whet.gateway.guard.Access`."""

    def __init__(self, server: TinkerServer, sampling: Sampling) -> None:
        self._server, self._sampling = server, sampling

    async def visitor(self, key: str | None) -> Visitor:
        return _User(self._server, self._sampling, await run_in_threadpool(self._owner, key))

    def _owner(self, key: str | None) -> str:
        hub = self._server.hub
        try:
            with hub.database.read() as session:
                return owner_of(identify(session, (key or "").removeprefix(KEY) or None, TRAIN, hub.clock()))
        except HubError as error:
            _refuse(error)


class _User:
    """See `whet.gateway.guard.Visitor`."""

    def __init__(self, server: TinkerServer, sampling: Sampling, owner: str) -> None:
        self._server, self._sampling, self._owner = server, sampling, owner

    async def models(self) -> Sequence[str]:
        return [self._server.base.name, *await run_in_threadpool(self._paths)]

    def _paths(self) -> list[str]:
        query = kept(self._server.hub.clock()).where(TinkerState.owner == self._owner, TinkerState.kind == "sampler")
        with self._server.hub.database.read() as session:
            newest = session.scalars(query.order_by(TinkerState.created_at.desc()).limit(LISTED))
            return [row.path for row in newest]

    def find(self, model: str) -> PolicyClient | None:
        base = self._server.base.name
        path = "" if model == base else model.removeprefix(f"{base};")
        if path and not path.startswith("tinker://"):
            return None
        policy = self._sampling.policy
        engine = _SavedWeights(self._server, self._sampling, self._owner, path)
        return PolicyClient(engine, policy.renderer, max_context=policy.client.max_context, in_threads=True)

    def answered(self, model: str, responses: Sequence[Response]) -> None:
        """Nothing is counted by user."""


class _SavedWeights(Engine):
    """The server's engine with the weights of a path, "" for the base; looked up, and loaded, with each request."""

    recomputes = False

    def __init__(self, server: TinkerServer, sampling: Sampling, owner: str, path: str) -> None:
        self.version = 0
        self._server, self._sampling, self._owner, self._path = server, sampling, owner, path

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        """Raises `RequestError` for a path of which the user may read nothing."""
        try:
            state = await run_in_threadpool(self._state) if self._path else None
            return await self._sampling.draw(self._owner, request, state, on_tokens)
        except HubError as error:
            _refuse(error)

    def _state(self) -> SampledState:
        with self._server.hub.database.read() as session:
            return saved_to_sample(self._server, session, self._owner, self._path)

    async def load_weights(self, update: WeightUpdate) -> None:
        raise NotImplementedError("weights are loaded as they are sampled")


def _refuse(error: HubError) -> NoReturn:
    missing = error.status == 404
    code, param = ("model_not_found", "model") if missing else (error.code, None)
    raise RequestError(str(error), status=error.status, code=code, param=param) from None
