"""Routes that sample: from the base model, and from weights that were saved for it."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.responses import Response
from tinker import types

from whet.hub.errors import HubError, not_found
from whet.tinker import states
from whet.tinker.api.call import Server, Training, check, owner_now, session_owner
from whet.tinker.log import SAMPLE, session_of
from whet.tinker.sample_wire import wanted
from whet.tinker.sampling import SampledState, Sampling
from whet.tinker.server import TinkerServer
from whet.tinker.storage.tables import TinkerSampler

router = APIRouter(prefix="/api/v1", include_in_schema=False)


def _sampling(server: TinkerServer) -> Sampling:
    if server.sampling is None:
        raise HubError("invalid", "this server trains only. Save the weights, and sample them elsewhere.")
    return server.sampling


@router.post("/create_sampling_session")
def create_sampling_session(call: Training, server: Server, request: types.CreateSamplingSessionRequest) -> Any:
    _sampling(server)
    with call.write() as opened:
        session, owner = session_owner(opened)
        in_session = session_of(session, owner, request.session_id)
        if in_session.ended_at is not None:
            raise HubError("invalid", f"session_id: the session {in_session.id} has ended.")
        state = _state(server, session, owner, request.base_model, request.model_path)
        path = None if state is None else request.model_path
        number, now = request.sampling_session_seq_id, server.hub.clock()
        row = states.add_sampler(server, session, owner, in_session.id, number, path, now)
    return types.CreateSamplingSessionResponse(sampling_session_id=row.id).model_dump()


@router.post("/join_sampling_session")
def join_sampling_session(call: Training, request: types.JoinSamplingSessionRequest) -> Any:
    """A number for a copy of a client: drawn, since copies come from any process."""
    with call.read() as opened:
        session, owner = session_owner(opened)
        _sampler(session, owner, request.sampling_session_id)
    return types.JoinSamplingSessionResponse(client_counter=secrets.randbelow(10**9 - 1) + 1).model_dump()


def _sampler(session: Session, owner: str, id: str) -> TinkerSampler:
    row = session.get(TinkerSampler, id)
    if row is None or row.owner != owner:
        raise not_found(f"sampling session {id[:100]}")
    return row


def _state(
    server: TinkerServer, session: Session, owner: str, base_model: str | None, path: str | None
) -> SampledState | None:
    """The weights that a request names; None for the base model's. Raises `HubError`."""
    if base_model not in (None, server.base.name) or (base_model is None and path is None):
        raise HubError("invalid", f"base_model: this server has '{server.base.name}'. Name it, or a model_path.")
    return None if path is None else saved_to_sample(server, session, owner, path)


def saved_to_sample(server: TinkerServer, session: Session, owner: str, path: str) -> SampledState:
    """The weights of a path. Raises `HubError`, 404 also for one that the owner may not read."""
    row = states.state_of(session, owner, path, server.hub.clock())
    if row.kind != "sampler":
        raise HubError("invalid", f"model_path: {row.path} is not to be sampled from. Use save_weights_for_sampler.")
    return SampledState(row.folder, row.size, row.expires_at)


@router.post("/asample")
async def asample(call: Training, server: Server, request: types.SampleRequest) -> dict[str, Any]:
    sampling, owner = _sampling(server), await owner_now(call, server)
    if request.sampling_params.seed is not None and not sampling.policy.seeded:
        raise HubError("invalid", "sampling_params.seed: vLLM's draws depend on what else it samples. Leave it out.")
    base_model, path, named = request.base_model, request.model_path, request.sampling_session_id

    def read() -> SampledState | None:
        with server.hub.database.read() as session:
            of = base_model, path
            if named is not None:
                row = _sampler(session, owner, named)
                of = row.base_model, row.model_path
            return _state(server, session, owner, *of)

    state = await server.unchanged.value((owner, base_model, path, named), read)
    if state is not None and state.expires_at is not None and state.expires_at <= server.hub.clock():
        raise not_found("state: it has expired")
    again = named is not None and request.seq_id is not None
    id = f"{named}:{request.seq_id}" if again else f"{secrets.token_hex(8)}{SAMPLE}{secrets.token_hex(8)}"
    want = wanted(request, server.base.limits, sampling.policy.renderer.stop_token_ids, key=id)
    adapter = None if state is None else state.folder
    requests = [replace(each, adapter=adapter) for each in want.requests]
    digest = hashlib.sha256(request.model_dump_json().encode()).hexdigest()
    sampling.submit(owner, id, digest, requests, state, want.written)
    return {"request_id": id, "sample_sequence_ids": [f"{id}:{number}" for number in range(request.num_samples)]}


@router.post("/cancel_future")
def cancel_future(call: Training, server: Server, request: types.FutureRetrieveRequest) -> Response:
    """Of a sample. What trains a model stays in its order, and is carried out."""
    owner = check(call)
    if server.sampling is not None:
        server.sampling.cancel(owner, request.request_id)
    return Response(status_code=204)
