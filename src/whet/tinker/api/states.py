"""Routes of states on disk: lists, who may read them, how long they stay, copies and downloads."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
import tarfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from sqlalchemy import func
from sqlalchemy.orm import Session
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response
from tinker import types

from whet.hub.api.call import HubRequest, base_of
from whet.hub.errors import HubError, not_found
from whet.tinker import states
from whet.tinker.api.answers import Part, kept, state_answer, when
from whet.tinker.api.call import Reading, Server, Training, session_owner
from whet.tinker.log import model_of, session_of
from whet.tinker.server import TinkerServer
from whet.tinker.storage.tables import TinkerModel, TinkerSession, TinkerState

router = APIRouter(prefix="/api/v1", include_in_schema=False)
OF_RUN = "/training_runs/{model}/checkpoints"
ONE = OF_RUN + "/{segment}/{name}"
GB = 10**9
LINK_S = 3600.0
LINK = "a file of a saved state"


@router.get(OF_RUN)
def list_states(call: Reading, server: Server, model: str) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        query = kept(server.hub.clock()).where(TinkerState.model_id == model_of(session, owner, model).id)
        rows = session.scalars(query.order_by(TinkerState.created_at))
        return {"checkpoints": [state_answer(row) for row in rows]}


@router.get("/checkpoints")
def list_all(call: Reading, server: Server, part: Part) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        query = kept(server.hub.clock()).where(TinkerState.owner == owner).order_by(TinkerState.created_at.desc())
        rows, cursor = part.of(session, query)
        return {"checkpoints": [state_answer(row) for row in rows], "cursor": cursor}


@router.get("/billing/usage/checkpoints/current")
def storage_usage(call: Reading, server: Server, project_id: str | None = None) -> dict[str, Any]:
    """The bytes of the user's states by the projects of their sessions; nothing is billed."""
    with call.read() as opened:
        session, owner = session_owner(opened)
        project = TinkerSession.details["project_id"].as_string()
        query = kept(server.hub.clock()).where(TinkerState.owner == owner)
        query = query.join(TinkerModel, TinkerModel.id == TinkerState.model_id)
        query = query.join(TinkerSession, TinkerSession.id == TinkerModel.session_id)
        if project_id is not None:
            query = query.where(project == project_id)
        sums = query.with_only_columns(project, func.count(), func.sum(TinkerState.size)).group_by(project)
        rows = session.execute(sums.order_by(project)).all()
    return {
        "data": [
            {
                "project_id": name or None,
                "user_name": owner,
                "checkpoint_count": count,
                "size_bytes": int(size),
                "size_gigabytes": int(size) / GB,
            }
            for name, count, size in rows
        ]
    }


class PathRequest(BaseModel):
    tinker_path: str


@router.post("/weights_info")
def weights_info(call: Reading, server: Server, request: PathRequest) -> dict[str, Any]:
    with call.read() as opened:
        session, owner = session_owner(opened)
        row = states.state_of(session, owner, request.tinker_path, server.hub.clock())
        spec = dict(session.get_one(TinkerModel, row.model_id).spec)
        spec.pop("seed")
        return {"base_model": server.base.name, "is_lora": True, "lora_rank": spec.pop("rank"), **spec}


def _path(model: str, segment: str, name: str) -> str:
    if segment not in states.KINDS:
        raise not_found(f"kind of states '{segment[:40]}'")
    return states.path_of(model, states.KINDS[segment], name)


@router.delete(ONE)
def delete_state(call: Training, server: Server, model: str, segment: str, name: str) -> Response:
    with call.write() as opened:
        session, owner = session_owner(opened)
        row = states.state_of(session, owner, _path(model, segment, name), server.hub.clock(), own=True)
        session.delete(row)
    shutil.rmtree(server.states / row.folder, ignore_errors=True)
    return Response(status_code=204)


@router.delete(OF_RUN + "/{name}")
def delete_without_kind(call: Training, model: str, name: str) -> Response:
    """A training state and sampler weights may have one name."""
    raise HubError("malformed", f"checkpoint id: '{name[:100]}' has no kind. Write weights/NAME, as lists do.")


@router.post(ONE + "/publish")
def publish(call: Training, server: Server, model: str, segment: str, name: str) -> Response:
    return _set(call, server, _path(model, segment, name), public=True)


@router.delete(ONE + "/publish")
def unpublish(call: Training, server: Server, model: str, segment: str, name: str) -> Response:
    return _set(call, server, _path(model, segment, name), public=False)


class TtlRequest(BaseModel):
    ttl_seconds: int | None = None


@router.put(ONE + "/ttl")
def set_ttl(call: Training, server: Server, model: str, segment: str, name: str, request: TtlRequest) -> Response:
    expires_at = states.expiry(request.ttl_seconds, server.hub.clock())
    return _set(call, server, _path(model, segment, name), expires_at=expires_at)


def _set(call: HubRequest, server: TinkerServer, path: str, **values: Any) -> Response:
    with call.write() as opened:
        session, owner = session_owner(opened)
        row = states.state_of(session, owner, path, server.hub.clock(), own=True)
        for key, value in values.items():
            setattr(row, key, value)
    return Response(status_code=204)


# Downloads


@router.get(ONE + "/archive")
def archive(call: Reading, server: Server, model: str, segment: str, name: str) -> Response:
    """The state as .tar.gz: a PEFT directory, which of a training state has the optimiser beside it."""
    with call.read() as opened:
        session, owner = session_owner(opened)
        row = states.state_of(session, owner, _path(model, segment, name), server.hub.clock())
    packed = server.states / f"{secrets.token_hex(8)}{states.PARTIAL}"
    with tarfile.open(packed, "w:gz", compresslevel=1) as file:
        file.add(server.states / row.folder, arcname=".")
    headers = {"Content-Disposition": f'attachment; filename="{name}.tar.gz"'}
    return FileResponse(packed, headers=headers, background=BackgroundTask(packed.unlink))


@router.get(ONE + "/external_weights_urls")
def file_links(call: Reading, server: Server, request: Request, model: str, segment: str, name: str) -> dict[str, Any]:
    """For an hour, an address of each file, which needs no key."""
    with call.read() as opened:
        session, owner = session_owner(opened)
        row = states.state_of(session, owner, _path(model, segment, name), server.hub.clock())
    folder, expires = server.states / row.folder, server.hub.clock() + LINK_S
    urls = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        said = json.dumps([row.folder, str(file.relative_to(folder)), expires])
        sealed = base64.urlsafe_b64encode(server.hub.cipher.encrypt(said, LINK)).decode()
        urls[str(file.relative_to(folder))] = f"{base_of(request)}api/v1/files?of={sealed}"
    return {"urls": urls, "expires": when(expires)}


@router.get("/files")
def file(server: Server, of: Annotated[str, Query(max_length=2000)]) -> Response:
    """A file by the address that `file_links` gave."""
    try:
        said = server.hub.cipher.decrypt(base64.urlsafe_b64decode(of), LINK)
    except ValueError:
        said = None
    folder, name, expires = json.loads(said) if said is not None else ("", "", 0.0)
    path = server.states / folder / name
    if expires < server.hub.clock() or not path.is_file():
        raise not_found("file of this address, which holds for an hour")
    return FileResponse(path, filename=Path(name).name)


# Copies


@router.post("/copy_weights")
def copy_weights(
    call: Training,
    server: Server,
    request: types.CopyWeightsRequest,
    x_idempotency_key: Annotated[str | None, Header(max_length=100)] = None,
) -> dict[str, str]:
    """A state as one of the user's own, in a training run that holds nothing else."""
    now = server.hub.clock()
    ends = states.expiry(request.ttl_seconds, now)
    with call.write() as opened:
        session, owner = session_owner(opened)
        source = states.state_of(session, owner, request.source_path, now)
        if request.session_id is not None:
            in_session = session_of(session, owner, request.session_id)
        else:
            in_session = _session_of_copy(session, owner, request, x_idempotency_key, now)
        model = f"{in_session.id}:train:{request.model_seq_id or 0}"
        path = states.path_of(model, source.kind, source.path.rpartition("/")[2])
        if session.get(TinkerModel, model) is not None:
            if session.get(TinkerState, path) is None:
                raise HubError("invalid", f"model_seq_id: {model} is a model already. Choose another number.")
            return {"tinker_path": path}  # the request was sent again
        of = session.get_one(TinkerModel, source.model_id)
        _add_copy(server, session, source, of, in_session, path, now, ends)
    return {"tinker_path": path}


def _session_of_copy(
    session: Session, owner: str, request: types.CopyWeightsRequest, key: str | None, now: float
) -> TinkerSession:
    """A session that has ended, for a copy without one; the same one where the request was sent again."""
    id = hashlib.sha256(f"{owner} {key or secrets.token_hex(16)}".encode()).hexdigest()[:16]
    row = session.get(TinkerSession, id)
    if row is None:
        details = {"project_id": request.destination_project_id}
        ended = {"type": "client_finished", "reason": {"type": "success"}, "detail": "a copy of weights"}
        row = TinkerSession(id=id, owner=owner, details=details, created_at=now, seen_at=now, ended_at=now, ended=ended)
        session.add(row)
        session.flush()
    return row


def _add_copy(
    server: TinkerServer,
    session: Session,
    source: TinkerState,
    of: TinkerModel,
    in_session: TinkerSession,
    path: str,
    now: float,
    ends: float | None,
) -> None:
    folder, model = secrets.token_hex(16), path.split("/")[2]
    shutil.copytree(server.states / source.folder, server.states / folder, copy_function=os.link)
    times = {"created_at": now, "used_at": now, "unloaded_at": now}
    nothing = {"applied_seq": 0, "state_seq": 0, "user_metadata": None}
    same = {"base_model": of.base_model, "spec": of.spec, "owner": in_session.owner}
    session.add(TinkerModel(id=model, session_id=in_session.id, **same, **times, **nothing))
    session.flush()
    session.add(
        TinkerState(
            path=path,
            model_id=model,
            owner=in_session.owner,
            kind=source.kind,
            folder=folder,
            size=source.size,
            public=False,
            user_metadata=source.user_metadata,
            created_at=now,
            expires_at=ends,
        )
    )
