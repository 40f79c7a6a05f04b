"""The log of requests: each is in the database before its id is sent, and is carried out once, in the order of `seq`.

A model is what its last state and the requests after it make of it. So nothing is lost with the process: at the next
start those that were carried out are repeated, without a second answer, and the others follow.
docs/design/tinker.md says why.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, defer

from whet.hub.errors import HubError, not_found
from whet.tinker.storage.tables import TinkerModel, TinkerRequest, TinkerSession

if TYPE_CHECKING:
    from whet.tinker.server import TinkerServer

CREATE, LOAD, UNLOAD = "create_model", "load_weights", "unload_model"
FORWARD, FORWARD_BACKWARD, OPTIM_STEP = "forward", "forward_backward", "optim_step"
SAVE, SAVE_FOR_SAMPLER, SAVE_EXTERNAL = "save_weights", "save_weights_for_sampler", "save_weights_external"
SAMPLE = ":sample:"
"""Within ids of sampling sessions and of requests to them, which are not in the log."""
CHANGES = (FORWARD_BACKWARD, OPTIM_STEP)
"""Kinds that are repeated after a start; states are written after the others that change a model."""

WAITING, DONE, FAILED = "waiting", "done", "failed"


def model_of(session: Session, owner: str, id: str) -> TinkerModel:
    """A model of the owner. Raises `HubError`, 404 also for one of another."""
    row = session.get(TinkerModel, id)
    if row is None or row.owner != owner:
        raise not_found(f"model {id[:100]}")
    return row


def session_of(session: Session, owner: str, id: str) -> TinkerSession:
    """A session of the owner. Raises `HubError`, 404 also for one of another."""
    row = session.get(TinkerSession, id)
    if row is None or row.owner != owner:
        raise not_found(f"session {id[:100]}")
    return row


def accept(
    server: TinkerServer, session: Session, owner: str, model_id: str, seq: int | None, kind: str, body: bytes
) -> str:
    """The id of a request that is now in the log; the same id for one that was sent again.

    Without `seq` it is the next of its model. Raises `HubError` for a model that is not the owner's or was unloaded, a
    `seq` that was another request, and more waiting requests than a user may have.
    """
    model = model_of(session, owner, model_id)
    digest = hashlib.sha256(kind.encode() + b"\0" + body).hexdigest()
    of_model = select(TinkerRequest).where(TinkerRequest.model_id == model_id)
    if seq is None:
        last = session.scalar(select(func.max(TinkerRequest.seq)).where(TinkerRequest.model_id == model_id))
        seq = max(model.applied_seq, -1 if last is None else last) + 1
    row = session.scalar(of_model.where(TinkerRequest.seq == seq).options(defer(TinkerRequest.body)))
    if row is not None:
        if row.digest != digest:
            raise HubError("invalid", f"seq_id: {seq} of {model_id} was another request before.")
        if row.state == WAITING:
            server.answers.awaited(row.id, owner)
        return row.id
    if not 0 <= seq < 2**31 or seq <= model.applied_seq:
        raise HubError("deleted", f"seq_id: {seq} of {model_id} is over; the last one was {model.applied_seq}.")
    if model.unloaded_at is not None:
        raise HubError("invalid", f"{model_id} was unloaded. Make a new model from a saved state.")
    server.quota.take(session, owner, kind, len(body))
    now = server.hub.clock()
    row = TinkerRequest(
        id=secrets.token_hex(16),
        model_id=model_id,
        owner=owner,
        seq=seq,
        kind=kind,
        digest=digest,
        body=body,
        state=WAITING,
        created_at=now,
    )
    session.add(row)
    model.used_at = now
    server.answers.awaited(row.id, owner)
    return row.id


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request whose turn it is: all of its model before it were carried out."""

    id: str
    model_id: str
    owner: str
    seq: int
    kind: str
    size: int  # of its body in bytes


_HEAD = (
    TinkerRequest.id,
    TinkerRequest.model_id,
    TinkerRequest.owner,
    TinkerRequest.seq,
    TinkerRequest.kind,
    func.length(TinkerRequest.body),
)


def heads(session: Session) -> list[RequestHead]:
    """Of each model the request whose turn it is, those that wait for the longest first."""
    query = select(*_HEAD).join(TinkerModel, TinkerModel.id == TinkerRequest.model_id)
    query = query.where(TinkerRequest.state == WAITING, TinkerRequest.seq == TinkerModel.applied_seq + 1)
    return [RequestHead(*row) for row in session.execute(query.order_by(TinkerRequest.created_at).limit(256))]


def bodies_of(session: Session, ids: Iterable[str]) -> dict[str, bytes]:
    """Of requests, by their ids."""
    rows = session.execute(select(TinkerRequest.id, TinkerRequest.body).where(TinkerRequest.id.in_(ids)))
    return {id: body for id, body in rows if body is not None}


def to_repeat(session: Session, model: TinkerModel) -> list[RequestHead]:
    """The requests that made of the model's state what it was: after a start they are carried out again."""
    after = TinkerRequest.seq > model.state_seq, TinkerRequest.seq <= model.applied_seq
    query = select(*_HEAD).where(TinkerRequest.model_id == model.id, *after)
    query = query.where(TinkerRequest.kind.in_(CHANGES), TinkerRequest.state == DONE)
    return [RequestHead(*row) for row in session.execute(query.order_by(TinkerRequest.seq))]


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How a request ended: the bytes of its answer, JSON or protobuf, and whether it failed.

    `record` writes what it made into other tables, and `replaced` is a folder of states that is not needed after that.
    """

    head: RequestHead
    result: bytes
    failed: bool = False
    record: Callable[[Session], None] | None = None
    replaced: str | None = None

    @property
    def protobuf(self) -> bool:
        """Whether the answer is a message; otherwise it is JSON."""
        return not self.failed and self.head.kind in (FORWARD, FORWARD_BACKWARD)


def finish(session: Session, ends: Sequence[RequestEnd], now: float) -> None:
    """Record answers, and that their requests were carried out."""
    answered: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for end in ends:
        repeated = end.head.kind in CHANGES and not end.failed
        values = {"id": end.head.id, "state": FAILED if end.failed else DONE, "result": end.result, "done_at": now}
        answered[repeated].append(values if repeated else {**values, "body": None})
        if end.record is not None:
            end.record(session)
    for rows in filter(None, answered.values()):
        session.execute(update(TinkerRequest), rows)
    session.execute(update(TinkerModel), [{"id": end.head.model_id, "applied_seq": end.head.seq} for end in ends])
    for end in ends:
        if end.failed and end.head.seq == 0:  # it was not made
            session.execute(update(TinkerModel).where(TinkerModel.id == end.head.model_id).values(unloaded_at=now))


def state_written(session: Session, model_id: str, seq: int, folder: str | None) -> str | None:
    """From now on the model starts from this state; the bodies before it are not needed. Returns the last folder."""
    model = session.get_one(TinkerModel, model_id)
    last, model.state_seq, model.state = model.state, seq, folder
    done = TinkerRequest.model_id == model_id, TinkerRequest.seq <= seq, TinkerRequest.body.is_not(None)
    session.execute(update(TinkerRequest).where(*done).values(body=None))
    return last
