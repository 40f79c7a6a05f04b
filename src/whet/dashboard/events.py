"""Server-sent events: streams of what is new in one run, and in the list of runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response, StreamingResponse

from whet.dashboard.call import Call, DashboardCall, DataRoute, RunId
from whet.dashboard.data.feeds import Subscriber, event, missed
from whet.dashboard.errors import DashboardError
from whet.errors import WhetError

router = APIRouter(route_class=DataRoute)
HEARTBEAT_SECONDS = 15.0
"""Between two looks at whether the viewer may still see what is streamed; a comment is sent where nothing else was."""
RETRY_MS = 1_000
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get("/events")
async def list_events(call: Call) -> Response:
    """`run` for every run that changed: `{"run", "state", "step", "reward", ...}`."""
    subscriber = Subscriber(call.viewer)
    call.data.watcher.follow_list(subscriber)
    first = f"retry: {RETRY_MS}\n\n".encode()
    return _stream(call, subscriber, first, lambda: _check_list(call, subscriber))


@router.get("/runs/{run}/events")
async def run_events(
    call: Call, run: RunId, last_event_id: Annotated[str, Header(max_length=200, alias="Last-Event-ID")] = ""
) -> Response:
    """`hello`, then `step`, `state`, `evaluation`, `log`, `finding`, `reset` (fetch all again), and `end`."""
    subscriber = Subscriber(call.viewer)

    def begin() -> bytes:
        library_run = call.run(run)
        feed = call.data.watcher.follow(library_run, subscriber)
        try:
            hello = event("hello", {"run": run, "state": library_run.state, "generation": feed.metrics.generation})
            end = [event("end", {"run": run, "state": library_run.state})] if library_run.ended else []
            return b"".join([f"retry: {RETRY_MS}\n\n".encode(), hello, *missed(feed, library_run, last_event_id), *end])
        except BaseException:
            call.data.watcher.leave(subscriber)
            raise

    first = await asyncio.to_thread(begin)
    return _stream(call, subscriber, first, lambda: call.run(run))


def _check_list(call: DashboardCall, subscriber: Subscriber) -> None:
    """Forget which runs the viewer may see. Raises `DashboardError` where its session has ended."""
    for id in [id for id, seen in subscriber.seen.items() if seen]:
        try:
            call.run(id)
        except DashboardError as error:
            if error.code != "not_found":
                raise
            subscriber.seen[id] = False


def _stream(call: DashboardCall, subscriber: Subscriber, first: bytes, check: Callable[[], object]) -> Response:
    return StreamingResponse(_batches(call, subscriber, first, check), media_type="text/event-stream", headers=HEADERS)


async def _batches(
    call: DashboardCall, subscriber: Subscriber, first: bytes, check: Callable[[], object]
) -> AsyncIterator[bytes]:
    try:
        yield first
        checked = time.monotonic()
        while b"event: end\n" not in first:
            try:
                batch = await asyncio.wait_for(subscriber.batches.get(), HEARTBEAT_SECONDS)
                if batch is None:
                    return  # dropped, or the server ends
                first = batch
            except TimeoutError:
                first = b": heartbeat\n\n"
            if time.monotonic() - checked >= HEARTBEAT_SECONDS:
                checked = time.monotonic()
                await asyncio.to_thread(check)
            yield first
    except WhetError as error:  # the run is gone, or the viewer may not see it any more
        yield event("end", {"reason": str(error)})
    finally:
        call.data.watcher.leave(subscriber)
