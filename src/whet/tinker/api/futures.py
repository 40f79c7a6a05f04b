"""Routes by which clients fetch answers."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from sqlalchemy.orm import defer
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from tinker import types

from whet.hub.errors import not_found
from whet.tinker import log
from whet.tinker.api.call import Reading, Server, owner_now
from whet.tinker.server import TinkerServer
from whet.tinker.storage.tables import TinkerRequest

router = APIRouter(prefix="/api/v1", include_in_schema=False)
PROTOBUF = (log.FORWARD, log.FORWARD_BACKWARD)


@router.post("/retrieve_future")
async def retrieve_future(call: Reading, server: Server, request: types.FutureRetrieveRequest) -> Response:
    """The answer once it is there; after a while `try_again`, upon which clients ask again."""
    with server.answers.expected(request.request_id) as event:
        answer = await _answer(server, await owner_now(call, server), request.request_id)
        if answer is None:
            try:
                await asyncio.wait_for(event.wait(), server.limits.poll_s)
            except TimeoutError:
                server.answers.forget(request.request_id)  # the database has the last word
            answer = await _answer(server, await owner_now(call, server), request.request_id)
    return answer or JSONResponse({"type": "try_again", "request_id": request.request_id, "queue_state": "active"})


async def _answer(server: TinkerServer, owner: str, id: str) -> Response | None:
    """None while it is not there. Raises `HubError`, 404 also for a request of another."""
    if log.SAMPLE in id and server.sampling is not None:
        sampled = server.sampling.answer(owner, id)
        return None if sampled is None else _response(sampled[0], protobuf=not sampled[1])
    try:
        answer = server.answers.answer(id, owner)
    except KeyError:
        return await run_in_threadpool(_stored, server, owner, id)
    return None if answer is None else _response(answer.body, protobuf=answer.protobuf)


def _stored(server: TinkerServer, owner: str, id: str) -> Response | None:
    with server.hub.database.read() as session:
        row = session.get(TinkerRequest, id, options=[defer(TinkerRequest.body)])
    if row is None or row.owner != owner:
        raise not_found(f"request {id[:100]}, or its answer is no longer kept")
    if row.state == log.WAITING:
        return None
    return _response(row.result, protobuf=row.state == log.DONE and row.kind in PROTOBUF)


def _response(body: bytes | None, *, protobuf: bool) -> Response:
    return Response(body, media_type="application/x-protobuf" if protobuf else "application/json")
