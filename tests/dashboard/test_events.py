"""Streams of what is new: in one run, and in the list of runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request

from whet.dashboard.app import create_app, dashboard_routes
from whet.dashboard.call import Site
from whet.dashboard.data import feeds
from whet.dashboard.data.dashboard_data import DashboardData
from whet.dashboard.errors import no_such
from whet.dashboard.folders import FolderLibrary, identity
from whet.dashboard.library import LibraryRun
from whet.records.lock import DirectoryLock
from whet.system.files import json_line, write_whole

from .conftest import Runs

SECONDS = 120.0
Event = tuple[str, dict[str, Any], str]


class Stream:
    """The events of one path, as a browser takes them."""

    def __init__(self, http: httpx.Client, path: str, headers: Mapping[str, str]) -> None:
        self._context = http.stream("GET", path, headers=headers)
        answer = self._context.__enter__()
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        self._lines = answer.iter_lines()

    def next(self) -> Event:
        """The next event: kind, data, id."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if line.startswith(("id: ", "event: ", "data: ")):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif not line and "event" in fields:
                return fields["event"], json.loads(fields["data"]), fields.get("id", "")
        return "", {}, ""

    def until(self, kind: str, fits: Callable[[Mapping[str, Any]], bool] = lambda data: True) -> Event:
        """The next event of a kind. Raises AssertionError where the stream ends before."""
        while True:
            found = self.next()
            assert found[0], f"the stream ended before {kind}"
            if found[0] == kind and fits(found[1]):
                return found

    def close(self) -> None:
        self._context.__exit__(None, None, None)


class Server:
    def __init__(self, data: DashboardData, address: str) -> None:
        self.data = data
        self.http = httpx.Client(base_url=address, timeout=SECONDS, trust_env=False)
        self.streams: list[Stream] = []

    def stream(self, path: str, last: str = "", **headers: str) -> Stream:
        made = Stream(self.http, path, {**headers, "Last-Event-ID": last} if last else headers)
        self.streams.append(made)
        return made


@contextmanager
def serving(data: DashboardData, app: FastAPI) -> Iterator[Server]:
    config = uvicorn.Config(app, http="h11", ws="none", log_level="error")
    running = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        made = Server(data, f"http://127.0.0.1:{listening.getsockname()[1]}")
        try:
            yield made
        finally:
            for stream in made.streams:
                stream.close()
            made.http.close()
            data.close()
            running.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive()


@pytest.fixture
def server(runs: Runs) -> Iterator[Server]:
    data = DashboardData(FolderLibrary([runs.folder / "runs"]))
    with serving(data, create_app(data, Site())) as made:
        yield made


def append(path: Path, *rows: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write("".join(map(json_line, rows)))


def row(step: int) -> dict[str, Any]:
    return {"step": step, "reward/mean": step / 10}


@pytest.fixture
def run(runs: Runs) -> Iterator[Path]:
    """A run in progress, at step 2."""
    directory = runs.training(metrics=[row(1), row(2)], state="running", ended=None)
    lock = DirectoryLock(directory)
    yield directory
    lock.release()


def path_of(run: Path) -> str:
    return f"/data/runs/{identity(run)}/events"


def test_steps_logs_evaluations_and_the_end_arrive_in_order(server: Server, run: Path) -> None:
    stream = server.stream(path_of(run))
    assert stream.next()[0] == "hello"
    append(run / "metrics.jsonl", row(3))
    assert stream.until("step")[1] == {"run": identity(run), "step": 3, "metrics": {"reward/mean": 0.3}}
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward/mean"')
    append(run / "evals.jsonl", {"moment": "during", "step": 3, "environment": "e", "sampling": "greedy", "reward": 1})
    assert stream.until("evaluation")[1]["reward"] == 1
    (run / "logs").mkdir()
    (run / "logs" / "run.log").write_text("2026-11-21T17:40:02+0000 WARNING careful\n")
    assert [line["level"] for line in stream.until("log")[1]["lines"]] == ["WARNING"]
    with (run / "metrics.jsonl").open("a") as file:
        file.write(": 0.4}\n")
    assert stream.until("step")[1]["step"] == 4
    write_whole(run / "status.json", json.dumps({"state": "running", "step": 4, "stalled": ["the sampler"]}))
    assert stream.until("state", lambda data: "stalled" in data["status"])[1]["step"] == 4
    append(run / "metrics.jsonl", row(5))
    write_whole(run / "status.json", json.dumps({"state": "finished", "step": 5}))
    events = [stream.next()]
    while events[-1][0] not in ("end", ""):
        events.append(stream.next())
    assert [data["step"] for kind, data, _ in events if kind == "step"] == [5]
    assert [data["state"] for kind, data, _ in events if kind in ("state", "end")][-2:] == ["finished", "finished"]
    assert stream.next()[0] == ""


def test_a_stream_that_broke_continues_after_the_last_event(server: Server, run: Path) -> None:
    stream = server.stream(path_of(run))
    stream.next()
    append(run / "metrics.jsonl", row(3))
    _, _, last = stream.until("step")
    stream.close()
    append(run / "metrics.jsonl", row(4), row(5))
    again = server.stream(path_of(run), last)
    assert [again.until("step")[1]["step"] for _ in range(2)] == [4, 5]
    append(run / "metrics.jsonl", row(6))
    assert again.until("step")[1]["step"] == 6


def test_a_run_that_was_resumed_from_an_earlier_step_is_reset(server: Server, run: Path) -> None:
    stream = server.stream(path_of(run))
    stream.next()
    append(run / "metrics.jsonl", row(3))
    _, _, last = stream.until("step")
    (run / "new").write_text(json_line(row(1)))
    os.replace(run / "new", run / "metrics.jsonl")
    assert stream.until("reset")[1]["generation"]
    append(run / "metrics.jsonl", row(2))
    assert stream.until("step")[1]["step"] == 2
    assert server.stream(path_of(run), last).until("reset")
    assert server.stream(path_of(run), "x:y").until("reset")


def test_viewers_of_a_run_share_one_feed_and_leave_nothing(server: Server, run: Path) -> None:
    streams = [server.stream(path_of(run)) for _ in range(5)]
    for stream in streams:
        stream.next()
    assert server.data.watcher.subscribers == 5
    append(run / "metrics.jsonl", row(3))
    events = [stream.until("step") for stream in streams]
    assert len({id for _, _, id in events}) == 1
    shutil.rmtree(run)
    assert ["no longer there" in stream.until("end")[1]["reason"] for stream in streams] == [True] * 5
    for stream in streams:
        stream.next()
    server.data.close()  # raises nothing, and no stream is left
    assert server.http.get(path_of(run)).status_code == 404


def test_lists_are_told_which_runs_changed(server: Server, run: Path) -> None:
    stream = server.stream("/data/events")
    assert stream.until("run")[1]["step"] == 2
    append(run / "metrics.jsonl", row(3))
    found = stream.until("run", lambda data: data["step"] == 3)[1]
    assert (found["id"], found["reward"], found["state"]) == (identity(run), 0.3, "running")
    write_whole(run / "status.json", json.dumps({"state": "finished", "step": 3, "ended": "2999-01-01T00:00:00+00:00"}))
    assert stream.until("run", lambda data: data["state"] == "finished")


def test_a_subscriber_that_takes_nothing_is_dropped() -> None:
    async def batches() -> list[bytes | None]:
        subscriber = feeds.Subscriber()
        for number in range(1_000):
            subscriber.offer(str(number).encode())
        await asyncio.sleep(0)
        return [subscriber.batches.get_nowait() for _ in range(subscriber.batches.qsize())]

    kept = asyncio.run(batches())
    assert len(kept) == feeds.MOST_WAITING + 1
    assert kept[-1] is None


def test_stream_of_a_run_that_has_ended_ends(server: Server, runs: Runs) -> None:
    run = runs.training("done", metrics=[row(1)])
    stream = server.stream(path_of(run))
    assert [stream.next()[0] for _ in range(3)] == ["hello", "end", ""]


def viewer_of(request: Request) -> str:
    return request.headers["viewer"]


class OwnersLibrary(FolderLibrary):
    """Runs whose names begin with the name of the one viewer that sees them."""

    def sees(self, viewer: str, run: LibraryRun) -> bool:
        return run.name.startswith(viewer)

    def run(self, viewer: str, id: str) -> LibraryRun:
        run = self.look(id)
        if run is None or not self.sees(viewer, run):
            raise no_such("run of this name")
        return run


def test_streams_show_a_viewer_nothing_of_others(runs: Runs) -> None:
    data = DashboardData(OwnersLibrary([runs.folder / "runs"]))
    app = FastAPI()
    app.state.dashboard_data, app.state.site = data, Site()
    app.router.routes.extend(dashboard_routes(viewer_of, viewer_of))
    owned = [runs.training(name, metrics=[row(1)], ended="2999-01-01T00:00:00+00:00") for name in ("ann", "bob")]
    with serving(data, app) as server:
        stream = server.stream("/data/events", viewer="bob")
        assert stream.until("run")[1]["name"] == "bob"
        for run in owned:
            append(run / "metrics.jsonl", row(2))
        assert stream.until("run", lambda data: data["step"] == 2)[1]["name"] == "bob"
        paths = (path_of(owned[0]), path_of(Path("x")))
        theirs, none = (server.http.get(path, headers={"viewer": "bob"}) for path in paths)
        assert (theirs.status_code, theirs.text) == (404, none.text)
