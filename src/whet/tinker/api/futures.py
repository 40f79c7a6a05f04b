"""Routes by which clients fetch answers."""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import APIRouter
from sqlalchemy.orm import defer
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from tinker import types

from whet.hub.api.call import HubRequest
from whet.hub.errors import not_found
from whet.tinker import log
from whet.tinker.api.call import Reading, Server, session_owner
from whet.tinker.sampling import Sampling
from whet.tinker.storage.tables import TinkerRequest

router = APIRouter(prefix="/api/v1", include_in_schema=False)
PROTOBUF = (log.FORWARD, log.FORWARD_BACKWARD)


@router.post("/retrieve_future")
async def retrieve_future(call: Reading, server: Server, request: types.FutureRetrieveRequest) -> Response:
    """The answer once it is there; after a while `try_again`, upon which clients ask again."""
    with server.answers.expected(request.request_id) as event:
        answer = await run_in_threadpool(_answer, call, server.sampling, request.request_id)
        if answer is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), server.limits.poll_s)
                answer = await run_in_threadpool(_answer, call, server.sampling, request.request_id)
    return answer or JSONResponse({"type": "try_again", "request_id": request.request_id, "queue_state": "active"})


def _answer(call: HubRequest, sampling: Sampling | None, id: str) -> Response | None:
    """None while it is not there. Raises `HubError`, 404 also for a request of another."""
    with call.read() as opened:
        session, owner = session_owner(opened)
        if log.SAMPLE in id and sampling is not None:
            sampled = sampling.answer(owner, id)
            return None if sampled is None else _response(sampled[0], protobuf=not sampled[1])
        row = session.get(TinkerRequest, id, options=[defer(TinkerRequest.body)])
        if row is None or row.owner != owner:
            raise not_found(f"request {id[:100]}, or its answer is no longer kept")
        if row.state == log.WAITING:
            return None
        protobuf = row.state == log.DONE and row.kind in PROTOBUF
        return _response(row.result, protobuf=protobuf)


def _response(body: bytes | None, *, protobuf: bool) -> Response:
    return Response(body, media_type="application/x-protobuf" if protobuf else "application/json")
