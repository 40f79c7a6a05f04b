"""Routes of a push: begin, upload in pieces, look, commit, abort."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Response
from pydantic import Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from whet.hub import policy
from whet.hub.answers import PushAnswer, UploadAnswer
from whet.hub.api.call import CallParameter, HubRequest, Identity, Name, Owner, RequestBody, Words, action
from whet.hub.archive.wheels import WheelFacts
from whet.hub.domain import pushes
from whet.hub.domain.access import Caller
from whet.hub.domain.views import push_view
from whet.hub.errors import HubError
from whet.hub.storage.tables import Push

router = APIRouter(prefix="/api/v1")
Kind = Literal["wheel", "sdist"]
BLOCK = 1 << 18


class AnnouncedFile(RequestBody):
    filename: Words = Field(min_length=1, max_length=200)
    size: int = Field(ge=1, le=1 << 40)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class NewPush(RequestBody):
    version: Words = Field(max_length=100)
    visibility: Literal["PUBLIC", "PRIVATE"] | None = None
    wheel: AnnouncedFile
    sdist: AnnouncedFile | None = None


@router.post("/environments/{owner}/{name}/pushes", status_code=201)
@action(policy.PUSH)
def begin_push(call: CallParameter, owner: Owner, name: Name, body: NewPush, response: Response) -> PushAnswer:
    expected = {"wheel": body.wheel.model_dump()}
    if body.sdist is not None:
        expected["sdist"] = body.sdist.model_dump()
    with call.write() as (session, caller):
        row, is_new = pushes.begin(call.hub, session, caller, owner, name, body.version, body.visibility, expected)
        session.flush()
        response.status_code = 201 if is_new else 200
        return push_view(call.hub, session, row, call.base)


@router.get("/pushes/{identity}")
@action(policy.OWN_PUSHES)
def get_push(call: CallParameter, identity: Identity) -> PushAnswer:
    with call.read() as (session, caller):
        return push_view(call.hub, session, pushes.own_push(session, caller, identity), call.base)


@router.patch("/pushes/{identity}/files/{kind}")
@action(policy.OWN_PUSHES)
async def upload(
    call: CallParameter, identity: Identity, kind: Kind, upload_offset: Annotated[int, Header(ge=0, le=1 << 40)]
) -> UploadAnswer:
    """The body is written as it arrives, so what came of an interrupted request counts."""
    size = await run_in_threadpool(_announced, call, identity, kind)
    lock = call.hub.push_locks[identity]
    if not lock.acquire(blocking=False):
        raise HubError("conflict", "another request writes to this push. Ask for the offset and continue.")
    try:
        path = call.hub.uploads / identity / kind
        offset, waiting = await run_in_threadpool(pushes.append, path, upload_offset, b"", size), bytearray()
        with contextlib.suppress(ClientDisconnect):
            async for piece in call.request.stream():
                waiting += piece
                if len(waiting) >= BLOCK:
                    offset = await asyncio.shield(run_in_threadpool(pushes.append, path, offset, bytes(waiting), size))
                    waiting.clear()
        offset = await asyncio.shield(run_in_threadpool(pushes.append, path, offset, bytes(waiting), size))
        return UploadAnswer(offset=offset)
    finally:
        lock.release()


def _announced(call: HubRequest, identity: str, kind: str) -> int:
    """The size of the file that is uploaded. The push stays open for as long again."""
    with call.read() as (session, caller):
        row = pushes.open_push(call.hub, session, caller, identity)
        if kind not in row.expected:
            raise HubError("not_found", f"this push has no {kind}.")
        size = int(row.expected[kind]["size"])
        until = row.expires_at
    if until - call.hub.clock() < call.hub.limits.push_s / 2:
        with call.write() as (session, _):
            session.get_one(Push, identity).expires_at = call.hub.clock() + call.hub.limits.push_s
    return size


@router.post("/pushes/{identity}/commit", status_code=201)
@action(policy.OWN_PUSHES)
def commit_push(call: CallParameter, identity: Identity, response: Response) -> PushAnswer:
    """Verify what was uploaded, then publish it. Again for a committed push: 200 and the same."""
    with call.read() as (session, caller):
        pushes.own_push(session, caller, identity)
    lock = call.hub.push_locks[identity]
    if not lock.acquire(blocking=False):
        raise HubError("conflict", "another request works on this push. Ask for its state.")
    try:
        with call.read() as (session, caller):
            row = pushes.own_push(session, caller, identity)
            if row.state == "committed":
                response.status_code = 200
                return push_view(call.hub, session, row, call.base)
            pushes.open_push(call.hub, session, caller, identity)
        try:
            facts = pushes.inspect(call.hub, row)
            version, is_new = _publish(call, row, facts)
        except HubError as error:
            if error.code in ("hash_mismatch", "archive_refused"):
                with call.write() as (session, _):
                    pushes.refuse(session, row, error)
                shutil.rmtree(call.hub.uploads / identity, ignore_errors=True)
            raise
        pushes.discard(call.hub, identity)
        call.hub.new_action.set()
        response.status_code = 201 if is_new else 200
        return version
    finally:
        lock.release()


def _publish(call: HubRequest, row: Push, facts: WheelFacts) -> tuple[PushAnswer, bool]:
    """Files first, then the transaction that names them; a file that no row names in the end is removed."""
    hashes = {file["sha256"]: kind for kind, file in row.expected.items()}
    with call.hub.store_lock:
        try:
            for sha256, kind in hashes.items():
                call.hub.store.add(pushes.staged(call.hub, row, kind), sha256)
            with call.write() as (session, caller):
                return _committed(call, session, caller, row, facts)
        except BaseException:
            _remove_unused(call, set(hashes))
            raise


def _committed(
    call: HubRequest, session: Session, caller: Caller, row: Push, facts: WheelFacts
) -> tuple[PushAnswer, bool]:
    published, is_new = pushes.publish(call.hub, session, caller, row, facts)
    session.flush()
    return push_view(call.hub, session, published, call.base), is_new


def _remove_unused(call: HubRequest, hashes: set[str]) -> None:
    from whet.hub.domain.environments import unused

    with call.hub.database.read() as session:
        gone = unused(session, hashes)
    for sha256 in gone:
        call.hub.store.remove(sha256)


@router.delete("/pushes/{identity}", status_code=204)
@action(policy.OWN_PUSHES)
def abort_push(call: CallParameter, identity: Identity) -> None:
    with call.write() as (session, caller):
        pushes.abort(session, caller, identity)
    pushes.discard(call.hub, identity)
