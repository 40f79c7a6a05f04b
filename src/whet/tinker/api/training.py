"""Routes of the verbs: each puts a request into the log of its model and answers its id."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from tinker import types
from tinker.proto import tinker_public_pb2 as pb

from whet.hub.api.call import HubRequest
from whet.hub.errors import HubError
from whet.tinker import log, states
from whet.tinker.api.call import Reading, Server, Training, owner_now, session_owner
from whet.tinker.entry import Entering
from whet.tinker.log import accept, model_of, session_of
from whet.tinker.server import TinkerServer
from whet.tinker.storage.tables import TinkerModel, TinkerSession
from whet.tinker.wire import cut_off, parse

router = APIRouter(prefix="/api/v1", include_in_schema=False)
READ_AT_ONCE = 1 << 16
"""Bytes of a message that are read without a thread for them."""
PARTS = ("train_attn", "train_mlp", "train_unembed")


async def _put(
    server: TinkerServer, call: HubRequest, model_id: str, seq: int | None, kind: str, body: bytes
) -> dict[str, Any]:
    owner = await owner_now(call, server)
    id = await server.entry.put(Entering(owner, model_id, seq, kind, body))
    return {"request_id": id, "model_id": model_id}


def _sent(request: BaseModel) -> bytes:
    return request.model_dump_json().encode()


@router.post("/create_model")
def create_model(call: Training, server: Server, request: types.CreateModelRequest) -> dict[str, Any]:
    base, lora = server.base, request.lora_config
    if request.base_model != base.name:
        raise HubError("invalid", f"base_model: this server has '{base.name}', not '{request.base_model[:200]}'.")
    if lora is None:
        raise HubError("invalid", "lora_config: this server trains adapters, not all parameters of a model.")
    if request.optimizer_config.type != "adamw":
        kind = request.optimizer_config.type[:60]
        raise HubError("invalid", f"optimizer_config: there is no optimiser '{kind}' here, only adamw.")
    spec = lora.model_dump()
    if spec["seed"] is None:
        spec["seed"] = secrets.randbelow(2**31)
    with call.write() as opened:
        session, owner = session_owner(opened)
        model = _new_model(server, session, owner, request, spec)
        id = accept(server, session, owner, model.id, 0, log.CREATE, _sent(request))
    server.work.set()
    return {"request_id": id, "model_id": model.id}


def _new_model(
    server: TinkerServer,
    session: Session,
    owner: str,
    request: types.CreateModelRequest | types.LoadWeightsRequest,
    spec: dict[str, Any],
) -> TinkerModel:
    """The row of a model; the same one for a request that was sent again. Raises `HubError`, where there is no room."""
    assert request.session_id is not None
    in_session = session_of(session, owner, request.session_id)
    id = f"{in_session.id}:train:{request.model_seq_id}"
    row = session.get(TinkerModel, id)
    if row is not None:
        return row
    if in_session.ended_at is not None:
        raise HubError("invalid", f"session_id: the session {in_session.id} has ended.")
    _check_spec(server, session, spec)
    now = server.hub.clock()
    row = TinkerModel(
        id=id,
        session_id=in_session.id,
        owner=owner,
        base_model=server.base.name,
        spec=spec,
        user_metadata=request.user_metadata,
        created_at=now,
        used_at=now,
        applied_seq=-1,
        state_seq=0,
    )
    session.add(row)
    session.flush()
    return row


def _check_spec(server: TinkerServer, session: Session, spec: dict[str, Any]) -> None:
    limits = server.limits
    if not 1 <= spec["rank"] <= limits.rank:
        raise HubError("invalid", f"lora_config.rank: it is {spec['rank']}; this server has 1 to {limits.rank}.")
    if not -(2**63) <= spec["seed"] < 2**63:
        raise HubError("invalid", "lora_config.seed: it has to be an integer of 64 bits.")
    wanted = server.spec_of(spec)
    if not wanted.targets:
        raise HubError("invalid", f"lora_config: nothing is trained. Set one of {', '.join(PARTS)}.")
    live = select(TinkerModel.spec).join(TinkerSession, TinkerSession.id == TinkerModel.session_id)
    live = live.where(TinkerModel.unloaded_at.is_(None), TinkerSession.ended_at.is_(None))
    live = live.where(TinkerSession.seen_at > server.hub.clock() - limits.live_s)
    taken = sum(server.bank.bytes_of(server.spec_of(other)) for other in session.scalars(live))
    needed = server.bank.bytes_of(wanted)
    if needed > limits.adapter_bytes:
        raise HubError("invalid", f"lora_config: it needs {needed} bytes; this server has {limits.adapter_bytes}.")
    if taken + needed > limits.adapter_bytes:
        raise HubError(
            "too_many",
            f"the models of this server take {taken} of {limits.adapter_bytes} bytes, and this one needs {needed}. "
            "End some, or take a lower rank.",
        )


@router.post("/get_info")
def get_info(call: Reading, server: Server, request: types.GetInfoRequest) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        row = model_of(session, owner, request.model_id)
    name = row.base_model
    data = {"model_name": name, "tokenizer_id": server.base.tokenizer}
    answer = {"type": "get_info", "model_data": data, "model_id": row.id, "model_name": name}
    return {**answer, "is_lora": True, "lora_rank": row.spec["rank"]}


@router.post("/unload_model")
async def unload_model(call: Training, server: Server, request: types.UnloadModelRequest) -> dict[str, Any]:
    return await _put(server, call, request.model_id, None, log.UNLOAD, _sent(request))


@router.post("/forward_backward")
async def forward_backward(call: Training, server: Server, request: Request) -> dict[str, Any]:
    """Protobuf: one chunk of a batch, with gradients or without."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HubError("malformed", "Content-Encoding: this server reads bodies that are not compressed.")
    await owner_now(call, server)  # before anything is read of it
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
    except HTTPException:  # too large: it fails in its turn, or what follows it would wait for it
        begun = cut_off(bytes(body[:1000]))
        if begun is None:
            raise
        body = bytearray(begun.SerializeToString())
    whole = bytes(body)
    message, same = _read(whole) if len(whole) <= READ_AT_ONCE else await run_in_threadpool(_read, whole)
    kind = log.FORWARD if message.forward_only else log.FORWARD_BACKWARD
    return await _put(server, call, message.model_id, message.seq_id or None, kind, same)


def _read(body: bytes) -> tuple[pb.ForwardBackwardRequest, bytes]:
    """The message of a body, and the bytes that every body with this message has."""
    message = parse(body)
    return message, message.SerializeToString(deterministic=True)


@router.post("/optim_step")
async def optim_step(call: Training, server: Server, request: types.OptimStepRequest) -> dict[str, Any]:
    return await _put(server, call, request.model_id, request.seq_id, log.OPTIM_STEP, _sent(request))


@router.post("/save_weights")
async def save_weights(call: Training, server: Server, request: types.SaveWeightsRequest) -> dict[str, Any]:
    return await _put(server, call, request.model_id, request.seq_id, log.SAVE, _sent(request))


@router.post("/save_weights_for_sampler")
async def save_for_sampler(
    call: Training, server: Server, request: types.SaveWeightsForSamplerRequest
) -> dict[str, Any]:
    return await _put(server, call, request.model_id, request.seq_id, log.SAVE_FOR_SAMPLER, _sent(request))


@router.post("/save_weights_external")
async def save_external(call: Training, server: Server, request: types.SaveWeightsExternalRequest) -> dict[str, Any]:
    return await _put(server, call, request.model_id, request.seq_id, log.SAVE_EXTERNAL, _sent(request))


@router.post("/load_weights")
async def load_weights(call: Training, server: Server, request: types.LoadWeightsRequest) -> dict[str, Any]:
    """Into a model, or, with `session_id` and `model_seq_id`, as a new model."""
    if request.session_id is None or request.model_seq_id is None:
        if request.model_id is None:
            raise HubError("invalid", "model_id: name a model, or session_id and model_seq_id for a new one.")
        return await _put(server, call, request.model_id, request.seq_id, log.LOAD, _sent(request))
    if request.base_model not in (None, server.base.name):
        raise HubError("invalid", f"base_model: this server has '{server.base.name}'.")
    return await run_in_threadpool(_load_as_new, call, server, request)


def _load_as_new(call: HubRequest, server: TinkerServer, request: types.LoadWeightsRequest) -> dict[str, Any]:
    with call.write() as opened:
        session, owner = session_owner(opened)
        state = states.state_of(session, owner, request.path, server.hub.clock())
        states.check_loadable(state, request)
        spec = session.get_one(TinkerModel, state.model_id).spec
        model = _new_model(server, session, owner, request, spec)
        id = accept(server, session, owner, model.id, 0, log.LOAD, _sent(request))
    server.work.set()
    return {"request_id": id, "model_id": model.id}
