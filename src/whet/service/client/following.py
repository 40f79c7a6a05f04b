"""A run of the service while it goes on: its log as it grows, its end, its metrics as rows, its files."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from whet.errors import ConfigError, RunError
from whet.hub.client.connection import HubClient, HubRequestError, path_of
from whet.service.answers import SubmittedRun

Choice = Literal["first", "best", "worst", "errored"]
POLL_S = 1.0
INDEX_S = 0.2
MOST_POINTS = 1_000
PAGE_LINES = 1_000


class LogLine(BaseModel):
    text: str
    level: str | None = None
    at: float | str | None = None


class LogAnswer(BaseModel):
    lines: list[LogLine]
    next: str = ""
    more: bool = False  # there are more now


class MetricsAnswer(BaseModel):
    steps: list[int]
    series: dict[str, list[float | None]]
    last_step: int | None = None


class IndexAnswer(BaseModel):
    complete: bool = True


class OfRollouts(BaseModel):
    """An answer from the index of a run's rollouts, which may still be made."""

    progress: IndexAnswer = IndexAnswer()


class RolloutsAnswer(OfRollouts):
    generation: str
    items: list[dict[str, Any]]


class DistributionsAnswer(OfRollouts):
    model_config = ConfigDict(extra="allow")

    histograms: dict[str, dict[str, Any]] = {}


OfRolloutsT = TypeVar("OfRolloutsT", bound=OfRollouts)


def run_path(run: SubmittedRun, *parts: str | int) -> str:
    return "/runs" + path_of(run.id, *parts)


def log_lines(
    service: HubClient,
    run: SubmittedRun,
    *,
    follow: bool = False,
    tail: int | None = None,
    search: str | None = None,
    level: str | None = None,
    since: float | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """The log's lines; with `follow` also what is written until the run ends."""
    chosen = {"search": search, "level": level and level.upper(), "since": None if since is None else repr(since)}
    query = {key: value for key, value in chosen.items() if value is not None}
    more = {"limit": str(PAGE_LINES)} if tail is None else {"limit": str(min(tail, PAGE_LINES)), "tail": "true"}
    while True:
        # Requested before the log is read: what is written just before the end is read too.
        ended = not follow or service.ask(SubmittedRun, "GET", run_path(run)).ended
        answer = service.ask(LogAnswer, "GET", run_path(run, "logs"), params={**query, **more})
        yield from (_of_user(line.text, run.id) for line in answer.lines)
        if answer.next:
            more = {"limit": str(PAGE_LINES), "cursor": answer.next}
        if answer.more:
            continue
        if ended:
            return
        wait(POLL_S)


def _of_user(text: str, run: str) -> str:
    """A line with commands for the user in place of those for the service's machine, whose folders it names."""
    text = re.sub(rf"[^\s'\"]*/runs/{run}/run(?![\w.-])(?!/)", run, text)
    return text.replace(f"whet train resume {run}", f"whet train restart {run}")


def wait_for_end(
    service: HubClient, run: SubmittedRun, patience_s: float, wait: Callable[[float], None] = time.sleep
) -> SubmittedRun:
    """The run once it has ended. Raises `RunError` where that takes longer."""
    deadline = time.monotonic() + patience_s
    while not run.ended:
        if time.monotonic() >= deadline:
            raise RunError(f"{run.id} is {run.state} still after {patience_s:g} s. Follow it: whet train get {run.id}")
        wait(POLL_S)
        run = service.ask(SubmittedRun, "GET", run_path(run))
    return run


def metric_rows(service: HubClient, run: SubmittedRun, names: list[str]) -> list[dict[str, Any]]:
    """A row for each step, at most 1,000; with no names all metrics."""
    query = {"points": str(MOST_POINTS), **({"names": ",".join(names)} if names else {})}
    answer = service.ask(MetricsAnswer, "GET", run_path(run, "metrics"), params=query)
    rows: list[dict[str, Any]] = [{"step": step} for step in answer.steps]
    for name, values in answer.series.items():
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name] = value
    return rows


def indexed(
    service: HubClient,
    answer: type[OfRolloutsT],
    run: SubmittedRun,
    what: str,
    query: Mapping[str, str],
    wait: Callable[[float], None] = time.sleep,
) -> OfRolloutsT:
    """What a route of rollouts answers once the service has indexed all of them, which the first request begins."""
    while not (reply := service.ask(answer, "GET", run_path(run, what), params=dict(query))).progress.complete:
        wait(INDEX_S)
    return reply


def step_rollouts(
    service: HubClient,
    run: SubmittedRun,
    *,
    step: int | None,
    environment: str | None,
    choice: Choice,
    count: int,
) -> tuple[int, list[dict[str, Any]]]:
    """The step (the newest if None) and up to `count` of its rollouts. Raises `RunError` where there is none yet."""
    of_step = run.step if step is None else step
    if not of_step:
        raise RunError(f"{run.id}: no step has been trained yet.")
    query = {"part": f"step_{of_step:06d}", "limit": str(min(count, 200)), "environment": environment}
    if choice in ("best", "worst"):
        query |= {"sort": "reward", "descending": "true" if choice == "best" else "false"}
    elif choice == "errored":
        query["failed"] = "true"
    parameters = {key: value for key, value in query.items() if value is not None}
    answer = indexed(service, RolloutsAnswer, run, "rollouts", parameters)
    rows = []
    for head in answer.items:
        of_list = {"generation": answer.generation}
        one = service.send("GET", f"/api/v1{run_path(run, 'rollouts', head['number'])}", params=of_list).json()
        scores = one.get("scores") or {}
        # The key of a group says nothing to people; its first rollout does.
        group = min(one.get("group") or [head["number"]])
        rows.append({**one, **scores, **head, "is_truncated": head.get("truncated"), "group": group})
    return of_step, rows


def download(service: HubClient, run: SubmittedRun, step: int, what: str, to: Path) -> Path:
    """Unpack an adapter, a model or a checkpoint into the new folder `to`.

    Raises `ConfigError` where it exists, and `HubRequestError`.
    """
    if to.exists():
        raise ConfigError(f"{to} exists already. Name another folder with --to, or remove it.")
    to.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    try:
        archive = folder / "archive.tar"
        path = f"/api/v1{run_path(run, 'checkpoints', step, 'archive')}?what={what}"
        with archive.open("wb") as file:
            for piece in service.download(path):
                file.write(piece)
        unpacked = folder / "unpacked"
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")  # refuses what leads outside
        except tarfile.TarError as error:
            raise HubRequestError(
                f"{what} of step {step}: what the service sent is no whole archive ({error})."
            ) from None
        inside = list(unpacked.iterdir())
        single = inside[0] if len(inside) == 1 and inside[0].is_dir() else unpacked
        os.replace(single, to)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return to
