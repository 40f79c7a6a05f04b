"""The HTTP routes of the runs' data, and the streams of what is new in them. docs/design/service.md describes each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query
from starlette.responses import Response, StreamingResponse

from whet.dashboard.call import (
    Amount,
    ByFilter,
    Call,
    DashboardCall,
    DataRoute,
    Number,
    RunId,
    Step,
    Words,
    json_answer,
)
from whet.dashboard.data import facts
from whet.dashboard.data.checkpoints import TarStream, archive, checkpoints, is_written
from whet.dashboard.data.comparing import compare
from whet.dashboard.data.feeds import Subscriber, event, missed
from whet.dashboard.data.files import log_lines
from whet.dashboard.data.rollouts import (
    RolloutQuery,
    distributions,
    facets,
    groups,
    newest_step,
    read_group,
    read_rollout,
    rollout_page,
)
from whet.dashboard.data.series import MOST_POINTS, metrics
from whet.dashboard.data.stores import OpenStore
from whet.dashboard.data.tokens import tokens_json, tokens_of
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import RunKind, RunQuery, RunState, What
from whet.errors import WhetError
from whet.records.heads import Filter, Sort, SortColumn
from whet.records.log import MOST_LINES, LogQuery

router = APIRouter(route_class=DataRoute)
HEARTBEAT_SECONDS = 15.0
"""Between two looks at whether the viewer may still see what is streamed; a comment is sent where nothing else was."""
RETRY_MS = 1_000
EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
Limit = Annotated[int, Query(ge=1, le=200)]
Points = Annotated[int, Query(ge=2, le=MOST_POINTS)]
Names = Annotated[str, Query(max_length=5_000)]
Level = Literal["", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


@router.get("/runs")
def list_runs(
    call: Call,
    kind: RunKind | Literal[""] = "",
    state: RunState | Literal[""] = "",
    owner: Words = "",
    search: Words = "",
    limit: Limit = 50,
    cursor: Words = "",
) -> Response:
    query = RunQuery(kind or None, state or None, owner or None, search, limit, cursor or None)
    listed = call.data.library.runs(call.viewer, query)
    return json_answer({"items": [run.view() for run in listed.items], "next": listed.next})


@router.get("/runs/{run}")
def get_run(call: Call, run: RunId) -> Response:
    return json_answer(call.run(run).view())


@router.get("/runs/{run}/config")
def get_config(call: Call, run: RunId) -> Response:
    return Response(facts.config_text(call.run(run)), media_type="text/plain")


@router.get("/runs/{run}/metrics")
def get_metrics(
    call: Call,
    run: RunId,
    names: Names = "",
    points: Points = 500,
    after: Annotated[int | None, Query(ge=-1, le=2**53)] = None,
) -> Response:
    return json_answer(metrics(call.data.series, call.run(run), _names(names), points, after))


@router.get("/runs/{run}/evaluations")
def get_evaluations(call: Call, run: RunId) -> Response:
    return json_answer({"items": facts.evaluations(call.run(run))})


@router.get("/runs/{run}/findings")
def get_findings(call: Call, run: RunId) -> Response:
    return json_answer({"items": call.data.findings(call.run(run))})


@router.get("/runs/{run}/progress")
def get_progress(call: Call, run: RunId) -> Response:
    return json_answer(facts.progress(call.run(run), call.data.use))


@router.get("/runs/{run}/report")
def get_report(call: Call, run: RunId) -> Response:
    page = facts.report(call.run(run))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
    return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": policy})


@router.get("/runs/{run}/logs")
def get_logs(
    call: Call,
    run: RunId,
    cursor: Words = "",
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 500,
    search: Words = "",
    level: Level = "",
    since: Amount = None,
    tail: bool = False,
) -> Response:
    return json_answer(log_lines(call.run(run), LogQuery(cursor, limit, tail, search, level, since)))


def rollout_query(
    by: ByFilter,
    search: Words = "",
    sort: SortColumn = "file",
    descending: bool = False,
    limit: Limit = 50,
    cursor: Words = "",
) -> RolloutQuery:
    """Which page of which list of rollouts, from a query."""
    return RolloutQuery(by, search, Sort(sort, descending), limit, cursor)


@router.get("/runs/{run}/rollouts")
def list_rollouts(call: Call, run: RunId, query: Annotated[RolloutQuery, Depends(rollout_query)]) -> Response:
    with call.data.stores.use(call.run(run)) as opened:
        return json_answer(rollout_page(opened, query))


@router.get("/runs/{run}/rollouts/values")
def list_values(call: Call, run: RunId) -> Response:
    """What there is to filter by."""
    with call.data.stores.use(call.run(run)) as opened:
        return json_answer(facets(opened))


@router.get("/runs/{run}/rollouts/{number}")
def get_rollout(call: Call, run: RunId, number: Number, generation: Words = "") -> Response:
    return json_answer(_rollout(call, run, number, generation, None))


@router.get("/runs/{run}/rollouts/{number}/tokens")
def get_tokens(
    call: Call,
    run: RunId,
    number: Number,
    start: Annotated[int, Query(alias="from", ge=0, le=2**40)] = 0,
    generation: Words = "",
) -> Response:
    """Tokens from `from` on: the rest of a rollout with many."""
    return json_answer(_rollout(call, run, number, generation, start)["tokens"])


def _rollout(call: DashboardCall, id: str, number: int, generation: str, start: int | None) -> dict[str, Any]:
    run = call.run(id)
    with call.data.stores.use(run) as opened:
        shown = read_rollout(opened, number, generation)
    decode, note = call.data.tokenizers.of(run) if shown.turns else (None, None)
    return shown.view() | {"tokens": tokens_json(tokens_of(shown, decode), note, start or 0)}


@router.get("/runs/{run}/rollouts/{number}/raw")
def get_raw(call: Call, run: RunId, number: Number, generation: Words = "") -> Response:
    """The line as it is in the file: what is cut elsewhere is whole here."""
    with call.data.stores.use(call.run(run)) as opened:
        size, chunks = _raw(opened, number, generation)
    name = f'attachment; filename="rollout-{number}.json"'
    headers = {"Content-Length": str(size), "Content-Disposition": name}
    return StreamingResponse(chunks, media_type="application/json", headers=headers)


def _raw(opened: OpenStore, number: int, generation: str) -> Any:
    from whet.dashboard.data.rollouts import check_generation

    check_generation(opened, opened.progress(), generation)
    return opened.store.raw(number)


@router.get("/runs/{run}/rollouts/{number}/group")
def get_group(call: Call, run: RunId, number: Number, generation: Words = "") -> Response:
    with call.data.stores.use(call.run(run)) as opened:
        shown = read_group(opened, number, generation)
    return json_answer({"generation": shown[0].generation, "items": [one.view() for one in shown]})


@router.get("/runs/{run}/groups")
def list_groups(call: Call, run: RunId, by: ByFilter, limit: Limit = 50, cursor: Words = "") -> Response:
    start = int(cursor) if cursor.isdecimal() and len(cursor) < 16 else 0
    with call.data.stores.use(call.run(run)) as opened:
        return json_answer(groups(opened, by, start, limit))


@router.get("/runs/{run}/distributions")
def get_distributions(call: Call, run: RunId, by: ByFilter) -> Response:
    """Of a step; without one, of the newest that was trained, or of everything where there are no steps."""
    with call.data.stores.use(call.run(run)) as opened:
        if by == Filter() and (step := newest_step(opened)) is not None:
            by = Filter(part=f"step_{step:06}", step=step)
        return json_answer(distributions(opened, by))


@router.get("/runs/{run}/checkpoints")
def list_checkpoints(call: Call, run: RunId) -> Response:
    return json_answer({"items": checkpoints(call.data.checks, call.run(run))})


@router.get("/runs/{run}/checkpoints/{step}/archive")
def get_archive(call: Call, run: RunId, step: Step, what: What = "checkpoint") -> Response:
    library_run = call.run(run)
    with ExitStack() as making:
        apart = None
        if what in library_run.makes and not is_written(library_run, step, what):
            apart = making.enter_context(call.data.library.make(library_run, step, what))
        made = archive(library_run, step, what, apart)
        until_sent = making.pop_all()
    safe = "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "-" for one in made.name)
    headers = {"Content-Length": str(made.size), "Content-Disposition": f'attachment; filename="{safe}"'}
    return StreamingResponse(_sent(made, until_sent), media_type="application/x-tar", headers=headers)


def _sent(made: TarStream, until: ExitStack) -> Iterator[bytes]:
    with until:
        yield from made.chunks


@router.get("/compare")
def get_comparison(
    call: Call, run: Annotated[list[Words], Query(min_length=2, max_length=4)], names: Names = "", points: Points = 500
) -> Response:
    return json_answer(compare(call.data, [call.run(id) for id in run], _names(names), points))


# Server-sent events.


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
    return StreamingResponse(
        _batches(call, subscriber, first, check), media_type="text/event-stream", headers=EVENT_HEADERS
    )


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
