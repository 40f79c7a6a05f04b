"""Weights on disk: what clients save, load and delete, and the states that models start from again.

Each is a folder below `states/`, named by the request that wrote it, so that a request that is carried out again after
a kill writes the same folder. What no row names is removed at the start.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from tinker import types
from tinker.types._pydantic_types.save_weights_external_response import SaveWeightsExternalResponseInternal
from tinker.types._pydantic_types.save_weights_for_sampler_response import SaveWeightsForSamplerResponseInternal

from whet.hub.errors import HubError, not_found
from whet.tinker import log
from whet.tinker.log import WAITING, RequestHead
from whet.tinker.server import TinkerServer
from whet.tinker.storage.tables import TinkerModel, TinkerRequest, TinkerSampler, TinkerSession, TinkerState

KINDS = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
SEGMENTS = {kind: segment for segment, kind in KINDS.items()}
TTL_S = (3600, 10 * 366 * 24 * 3600)
UNNAMED_S = 24 * 3600
"""How long weights are kept that a client samples from without having named them."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PATH = re.compile(
    r"tinker://([A-Za-z0-9:_-]{1,80})/(weights|sampler_weights|external_weights)/([A-Za-z0-9._-]{1,100})"
)
PARTIAL = ".partial"


def path_of(model: str, kind: str, name: str) -> str:
    """The path by which clients name a state."""
    return f"tinker://{model}/{SEGMENTS[kind]}/{name}"


def state_of(session: Session, owner: str, path: str, now: float, *, own: bool = False) -> TinkerState:
    """A state that the owner may read: its own, or one that was published; with `own`, only its own.

    Raises `HubError`: 404 also for one of another and one that has expired.
    """
    if not _PATH.fullmatch(path):
        form = "tinker://MODEL/weights/NAME, with sampler_weights or external_weights for the other kinds"
        raise HubError("invalid", f"path: '{path[:200]}' is none. It has the form {form}.")
    row = session.get(TinkerState, path)
    gone = row is None or (row.owner != owner and (own or not row.public))
    if row is None or gone or (row.expires_at is not None and row.expires_at <= now):
        raise not_found(f"state {path}")
    return row


def expiry(ttl_seconds: int | None, now: float) -> float | None:
    """When a state ends. Raises `HubError` for a time that is not allowed."""
    if ttl_seconds is None:
        return None
    if not TTL_S[0] <= ttl_seconds <= TTL_S[1]:
        raise HubError("invalid", f"ttl_seconds: it has to be in {TTL_S[0]} to {TTL_S[1]}, or absent.")
    return now + ttl_seconds


# Requests of a model, carried out by the training thread


Record = Callable[[Session], None] | None


def carry_out(
    server: TinkerServer, head: RequestHead, model: TinkerModel, body: bytes
) -> tuple[Any, Record, str | None]:
    """Save or load. The model is in memory as the requests before this one left it. Raises `WhetError`.

    Returns the answer, what records the files that were written, and the folder that they replace.
    """
    if head.kind == log.LOAD:
        return _load(server, head, model, types.LoadWeightsRequest.model_validate_json(body)), None, None
    bank, id = server.bank, model.id
    if head.kind == log.SAVE:
        training = types.SaveWeightsRequest.model_validate_json(body)
        row, replaced = _save(server, head, model, "training", training, lambda folder: bank.save(id, folder))
        return types.SaveWeightsResponse(path=row.path, type=log.SAVE), _merging(row), replaced
    if head.kind == log.SAVE_EXTERNAL:
        external = types.SaveWeightsExternalRequest.model_validate_json(body)
        if external.age_encryption_recipients:
            raise HubError("invalid", "age_encryption_recipients: this server does not encrypt what it exports.")
        row, replaced = _save(server, head, model, "external", external, lambda folder: bank.export(id, folder))
        answer = SaveWeightsExternalResponseInternal(path=row.path, size_bytes=row.size, type=log.SAVE_EXTERNAL)
        return answer, _merging(row), replaced
    sampler = types.SaveWeightsForSamplerRequest.model_validate_json(body)
    if sampler.kind != "snapshot":
        raise HubError("invalid", f"kind: this server has no '{sampler.kind}' sampling clients, only snapshots.")
    if sampler.path is None and (server.sampling is None or sampler.sampling_session_seq_id is None):
        raise HubError("invalid", "path: this server does not sample. Name the weights, and sample them elsewhere.")
    number = None if sampler.path is not None else sampler.sampling_session_seq_id
    if number is not None:
        with server.hub.database.read() as session:
            check_sampler(session, model.session_id, number, path_of(id, "sampler", _name(head, sampler)))
    row, replaced = _save(server, head, model, "sampler", sampler, lambda folder: bank.export(id, folder))
    if number is None:
        return SaveWeightsForSamplerResponseInternal(path=row.path, type=log.SAVE_FOR_SAMPLER), _merging(row), replaced

    def record(session: Session) -> None:
        session.merge(row)
        add_sampler(server, session, model.owner, model.session_id, number, row.path, row.created_at)

    made = f"{model.session_id}{log.SAMPLE}{number}"
    return SaveWeightsForSamplerResponseInternal(sampling_session_id=made, type=log.SAVE_FOR_SAMPLER), record, replaced


def _merging(row: TinkerState) -> Record:
    def record(session: Session) -> None:
        session.merge(row)

    return record


def check_sampler(session: Session, in_session: str, number: int, path: str | None) -> TinkerSampler | None:
    """The sampling session of this number, if there is one. Raises `HubError` where it is of other weights."""
    row = session.get(TinkerSampler, f"{in_session}{log.SAMPLE}{number}")
    if row is not None and row.model_path != path:
        raise HubError("invalid", f"sampling_session_seq_id: {row.id} is of other weights.")
    return row


def add_sampler(
    server: TinkerServer, session: Session, owner: str, in_session: str, number: int, path: str | None, now: float
) -> TinkerSampler:
    """A sampling session; the same one for a request that was sent again.

    Raises `HubError` for one that is of other weights.
    """
    row = check_sampler(session, in_session, number, path)
    if row is None:
        base, id = server.base.name, f"{in_session}{log.SAMPLE}{number}"
        row = TinkerSampler(id=id, session_id=in_session, owner=owner, base_model=base, model_path=path, created_at=now)
        session.add(row)
    return row


def _name(head: RequestHead, request: Any) -> str:
    return request.path or f"{head.seq:06d}"


def _save(
    server: TinkerServer, head: RequestHead, model: TinkerModel, kind: str, request: Any, write: Callable[[Path], None]
) -> tuple[TinkerState, str | None]:
    """The row of what was written, and the folder of what had its name."""
    name, now = _name(head, request), server.hub.clock()
    unnamed = kind == "sampler" and request.path is None
    if not _NAME.fullmatch(name):
        raise HubError("invalid", f"path: '{name[:100]}' is no name; letters, digits, '.', '_' and '-' make one.")
    ends, path = expiry(request.ttl_seconds or (UNNAMED_S if unnamed else None), now), path_of(model.id, kind, name)
    with server.hub.database.read() as session:
        there = session.get(TinkerState, path)
    if there is not None and there.folder != head.id and not getattr(request, "overwrite", False):
        raise HubError("invalid", f"path: {path} exists. Choose another name, delete it, or save with overwrite=True.")
    folder = _written(server.states / head.id, write)
    row = TinkerState(
        path=path,
        model_id=model.id,
        owner=model.owner,
        kind=kind,
        folder=head.id,
        size=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        public=False,
        user_metadata=getattr(request, "user_metadata", None),
        created_at=now,
        expires_at=ends,
    )
    return row, there.folder if there is not None and there.folder != head.id else None


def _written(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, written aside and then renamed: it is there whole or not at all."""
    aside = folder.with_name(folder.name + PARTIAL)
    for old in (aside, folder):
        _remove(old)
    aside.mkdir(parents=True, mode=0o700)
    write(aside)
    aside.rename(folder)
    return folder


def remove(server: TinkerServer, folder: str) -> None:
    """A folder that no row names any more."""
    _remove(server.states / folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _load(server: TinkerServer, head: RequestHead, model: TinkerModel, request: types.LoadWeightsRequest) -> Any:
    with server.hub.database.read() as session:
        row = state_of(session, model.owner, request.path, server.hub.clock())
        other = session.get_one(TinkerModel, row.model_id)
    check_loadable(row, request)
    if _shape(other) != _shape(model):
        raise HubError("invalid", f"path: {row.path} is of another rank or other layers than {model.id}.")
    if other.spec != model.spec:  # another seed
        server.bank.remove(model.id)
        server.bank.create(model.id, server.spec_of(other.spec))
    server.bank.load(model.id, server.states / row.folder, request.optimizer)
    # What was loaded may be deleted before the next start: the model gets a state of its own.
    write(server, model.id, head.seq, other.spec)
    return types.LoadWeightsResponse(path=row.path)


def check_loadable(row: TinkerState, request: types.LoadWeightsRequest) -> None:
    """Raises `HubError` for weights that cannot be trained on, and for another optimiser."""
    if row.kind != "training":
        raise HubError("invalid", f"path: {row.path} is no training state. Load one that save_state made.")
    config = request.optimizer_config
    if config is not None and config.type != "adamw":
        raise HubError("invalid", f"optimizer_config: there is no optimiser '{config.type[:60]}' here, only adamw.")


def _shape(model: TinkerModel) -> dict[str, Any]:
    return {key: value for key, value in model.spec.items() if key != "seed"}


# States that models start from again


def write(server: TinkerServer, model_id: str, seq: int, spec: dict[str, Any] | None = None) -> None:
    """A state of a model without gradients, after the request `seq`: a start repeats only what follows.

    `spec` is the model's from now on.
    """
    name = f"{model_id.replace(':', '-')}-at-{seq}"
    _written(server.states / name, lambda folder: server.bank.save(model_id, folder))
    with server.hub.database.write() as session:
        last = log.state_written(session, model_id, seq, name)
        if spec is not None:
            session.get_one(TinkerModel, model_id).spec = spec
    if last is not None and last != name:
        _remove(server.states / last)


def unload(server: TinkerServer, model_id: str) -> None:
    """The model ends; the states that its client saved stay."""
    with server.hub.database.write() as session:
        model = session.get_one(TinkerModel, model_id)
        model.unloaded_at = server.hub.clock()
        last, model.state = model.state, None
        session.execute(update(TinkerRequest).where(TinkerRequest.model_id == model_id).values(body=None))
    if last is not None:
        _remove(server.states / last)


# Cleaning


def clean(server: TinkerServer) -> None:
    """At the start: remove folders that no row names, which a kill left."""
    server.states.mkdir(mode=0o700, parents=True, exist_ok=True)
    with server.hub.database.read() as session:
        named = set(session.scalars(select(TinkerState.folder)))
        named |= set(session.scalars(select(TinkerModel.state).where(TinkerModel.state.is_not(None))))
    for folder in server.states.iterdir():
        if folder.name not in named:
            _remove(folder)


def tidy(server: TinkerServer) -> list[str]:
    """End what has expired: states, answers, gaps, sessions that were not heard of. Returns the models that ended."""
    now, limits = server.hub.clock(), server.limits
    with server.hub.database.write() as session:
        expired = list(session.scalars(select(TinkerState).where(TinkerState.expires_at <= now)))
        for row in expired:
            session.delete(row)
        fetched = TinkerRequest.done_at < now - limits.answer_s, TinkerRequest.body.is_(None)
        session.execute(delete(TinkerRequest).where(*fetched))
        late = _fail_gaps(session, now - limits.gap_s)
        silent = select(TinkerSession).where(TinkerSession.ended_at.is_(None))
        for quiet in session.scalars(silent.where(TinkerSession.seen_at < now - limits.keep_s)):
            quiet.ended_at, quiet.ended = now, {"type": "cancelled", "detail": "the client was not heard of"}
        over = select(TinkerModel.id).join(TinkerSession, TinkerSession.id == TinkerModel.session_id)
        over = over.where(TinkerSession.ended_at.is_not(None), TinkerModel.unloaded_at.is_(None))
        waiting = select(TinkerRequest.model_id).where(TinkerRequest.state == WAITING)
        ended = list(session.scalars(over.where(TinkerModel.id.not_in(waiting))))
    for state in expired:
        _remove(server.states / state.folder)
    for model in ended:
        unload(server, model)
    server.answers.ready(late)
    return ended


def _fail_gaps(session: Session, before: float) -> list[str]:
    """Of each model of which a request has waited too long for one before it that did not come, the first that waits.

    Those that follow it without a gap are carried out.
    """
    waiting, applied = TinkerRequest.state == WAITING, TinkerModel.applied_seq
    late = select(TinkerRequest.model_id).join(TinkerModel, TinkerRequest.model_id == TinkerModel.id)
    late = late.where(waiting, TinkerRequest.created_at < before, TinkerRequest.seq > applied + 1).distinct()
    failed = []
    for id in session.scalars(late).all():
        model = session.get_one(TinkerModel, id)
        of_model = TinkerRequest.model_id == id, TinkerRequest.seq > model.applied_seq
        first = select(TinkerRequest).where(waiting, *of_model).order_by(TinkerRequest.seq)
        row = session.scalars(first.limit(1)).one()
        if row.seq == model.applied_seq + 1:
            continue  # its turn is now
        said = f"the request {model.applied_seq + 1} of {model.id} never came; {row.seq} waited for it."
        row.result = types.RequestFailedResponse(error=said, category="user").model_dump_json().encode()
        row.state, row.body, row.done_at, model.applied_seq = log.FAILED, None, before, row.seq
        failed.append(row.id)
    return failed
