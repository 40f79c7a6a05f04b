"""Each model as a run: a folder in `runs/` in the layout of training, for `whet dashboard` and `whet train list`.

    runs/SESSION-train-0/config.toml      the base model, the adapter, its owner
                         status.json      running; interrupted: its client is silent, or the server stopped; finished
                         metrics.jsonl    one line for each optimiser step
                         rollouts/        of steps with advantages the first texts, where the server has a tokenizer
                         logs/run.log     what was saved and loaded

It is a view of the log, not a part of it: a line is written once its step is in the database. A kill between the two
leaves the step to be repeated after the next start, and its line is written then; `request` says which steps have one.
A disk that does not take a line does not stop training. All methods are called from one thread.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from sqlalchemy import or_, select

from whet.parsing import as_whole
from whet.records.directory import METRICS, ROLLOUTS, RUN_CONFIG, STATUS
from whet.records.lock import LOCK, DirectoryLock
from whet.records.log import LOG
from whet.records.stored import read_status
from whet.records.tail import last_row
from whet.rl.learner.adapters.work import AdamParams, AdapterOutput, Datum
from whet.rl.storage.run_directory import write_step
from whet.system.files import LineFile, json_line, write_whole
from whet.tinker import log
from whet.tinker.log import RequestEnd
from whet.tinker.names import SILENT, run_id, shown_name
from whet.tinker.server import TinkerServer
from whet.tinker.storage.tables import TinkerModel, TinkerSession

REASONS = {
    "interrupted": SILENT,
    "stopped": "its server was stopped; it continues when the server is started again",
}
MOST_TEXTS = 8
"""Of a step: a sequence may have as many tokens as the model's context."""
SAVED = {log.SAVE: "saved", log.SAVE_FOR_SAMPLER: "saved to sample from", log.SAVE_EXTERNAL: "exported"}
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PassSums:
    """Sums over the backward passes since the last step."""

    loss: float = 0.0
    sequences: int = 0
    tokens: int = 0
    trained: int = 0  # tokens whose weight or advantage is not 0
    advantages: float | None = None
    kl: float | None = None
    sampled: list[Datum] = field(default_factory=list)  # the first ones

    def add(self, data: Sequence[Datum], output: AdapterOutput) -> None:
        self.loss += output.loss
        self.sequences += len(data)
        for datum, logprobs in zip(data, output.logprobs, strict=True):
            count = len(datum.ids)
            self.tokens += count
            weights = datum.inputs.get("weights", datum.inputs.get("advantages"))
            trained = np.full(count, True) if weights is None else weights.reshape(count, -1).any(axis=1)
            self.trained += int(trained.sum())
            if "advantages" in datum.inputs:
                self.sampled += [datum] if len(self.sampled) < MOST_TEXTS else []
                ratio = logprobs[trained] - np.asarray(datum.inputs["logprobs"][trained], np.float64)
                self.kl = (self.kl or 0.0) + float((np.expm1(ratio) - ratio).sum())
                self.advantages = (self.advantages or 0.0) + float(datum.inputs["advantages"][trained].sum())

    def metrics(self) -> dict[str, float]:
        """By the names of training runs; nothing without a pass."""
        if not self.sequences:
            return {}
        each, trained = self.sequences, max(1, self.trained)
        values = {
            "optim/loss": self.loss / trained,
            "data/rows": float(each),
            "seq_len/mean": self.tokens / each,
            "seq_len/trained_mean": self.trained / each,
        }
        sums = {"advantage/mean": self.advantages, "policy/kl": self.kl}
        return values | {name: value / trained for name, value in sums.items() if value is not None}


@dataclass(slots=True)
class ModelRun:
    """What is known of one folder."""

    directory: Path
    lines: LineFile
    fields: dict[str, Any]  # of its status
    step: int
    seq: int  # of the request of the last step that has a line
    at: float | None = None  # when that was; None before the first step since the start


class ModelRuns:
    """The runs of one server."""

    def __init__(self, server: TinkerServer) -> None:
        self._server = server
        self._folder = server.data / "runs"
        self._lock: DirectoryLock | None = None
        self._runs: dict[str, ModelRun] = {}
        self._passes: dict[str, PassSums] = {}
        self._steps: dict[str, tuple[dict[str, float], list[Datum]]] = {}  # of each model, what is not written yet
        self._states: dict[str, str] = {}

    def start(self) -> None:
        """Raises `ConfigError`, `OSError` where the folder cannot be used."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = DirectoryLock(self._folder, "training in")
        self.look(everything=True)

    def stop(self) -> None:
        for model, state in self._states.items():
            if state == "running":
                with _noted(model):
                    self._write_status(self._run(model), "interrupted", REASONS["stopped"])
        if self._lock is not None:
            self._lock.release()

    def look(self, *, everything: bool = False) -> None:
        """Write what changed without a request: clients fell silent, models ended with their sessions."""
        now = self._server.hub.clock()
        query = select(TinkerModel.id, TinkerModel.unloaded_at, TinkerSession.seen_at)
        query = query.join(TinkerSession, TinkerSession.id == TinkerModel.session_id)
        if not everything:
            query = query.where(or_(TinkerModel.unloaded_at.is_(None), TinkerModel.unloaded_at > now - 3600))
        with self._server.hub.database.read() as session:
            rows = session.execute(query).all()
        for model, unloaded, seen in rows:
            live = seen > now - self._server.limits.live_s
            state = "finished" if unloaded is not None else "running" if live else "interrupted"
            if self._states.get(model) == state or not (self._directory(model) / RUN_CONFIG).exists():
                continue
            with _noted(model):
                if state != "finished" or read_status(self._directory(model)).get("state") != state:
                    self._write_state(model, state)

    # What the training thread tells

    def passed(self, model: str, data: Sequence[Datum], output: AdapterOutput) -> None:
        """A backward pass was computed."""
        self._passes.setdefault(model, PassSums()).add(data, output)

    def stepped(self, model: str, seq: int, params: AdamParams, metrics: Mapping[str, float]) -> None:
        """A step was computed; it counts once `written` or `repeated` says so."""
        sums = self._passes.pop(model, PassSums())
        moved = {f"optim/{name}": value for name, value in metrics.items()}
        row = {"request": seq, **sums.metrics(), **moved, "optim/lr": params.learning_rate}
        self._steps[model] = row, sums.sampled
        self._server.computed.update({"steps": 1, "tokens": sums.tokens, "sequences": sums.sequences})

    def repeated(self, model: str) -> None:
        """The step is in the database since before the start."""
        with _noted(model):
            self._write_step(model, None)

    def forget(self, model: str) -> None:
        """The model leaves memory."""
        self._passes.pop(model, None)
        self._runs.pop(model, None)

    def written(self, ends: Sequence[RequestEnd]) -> None:
        """These are in the database."""
        for end in ends:
            model, kind = end.head.model_id, end.head.kind
            if end.failed:
                continue
            with _noted(model):
                if kind == log.OPTIM_STEP:
                    self._write_step(model, self._server.hub.clock())
                elif kind == log.UNLOAD:
                    self._write_state(model, "finished")
                elif kind in (log.CREATE, log.LOAD) or kind in SAVED:
                    said = json.loads(end.result).get("path")
                    if kind == log.LOAD:
                        self._passes.pop(model, None)  # gradients are not kept by a load
                    if kind == log.CREATE or end.head.seq == 0:
                        self._write_state(model, "running")
                    if said is not None:
                        run = self._run(model)
                        self._write_log(run, f"{SAVED.get(kind, 'loaded')} after step {run.step}: {said}")

    # Files

    def _directory(self, model: str) -> Path:
        return self._folder / run_id(model)

    def _run(self, model: str) -> ModelRun:
        if model not in self._runs:
            with self._server.hub.database.read() as session:
                row = session.get_one(TinkerModel, model)
                name = shown_name(row, session.get(TinkerSession, row.session_id))
            directory = self._directory(model)
            if not (directory / RUN_CONFIG).exists():
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                about = {"id": model, "owner": row.owner, **row.spec}
                config = {"name": name, "model": row.base_model, "tinker": about}
                write_whole(directory / RUN_CONFIG, tomli_w.dumps(config), durable=False)
            lock, own = self._folder / LOCK, directory / LOCK
            if not own.exists() or not own.samefile(lock):
                own.unlink(missing_ok=True)
                os.link(lock, own)  # one lock, held once: a server may have thousands of models
            last = last_row(directory, METRICS)
            fields = {"name": name, "model": row.base_model, "started": _date(row.created_at)}
            if row.unloaded_at is not None:
                fields["ended"] = _date(row.unloaded_at)
            seq = last.get("request")
            self._runs[model] = ModelRun(
                directory,
                LineFile(directory / METRICS),
                fields,
                as_whole(last.get("step")) or 0,
                seq if isinstance(seq, int) else -1,
            )
        return self._runs[model]

    def _write_step(self, model: str, now: float | None) -> None:
        (row, sampled), run = self._steps.pop(model), self._run(model)
        if row["request"] <= run.seq:  # it was written before the start
            return
        if now is not None and run.at is not None and (seconds := now - run.at) > 0:
            row["time/step"] = seconds
            row["perf/tokens_per_s"] = row.get("seq_len/trained_mean", 0.0) * row.get("data/rows", 0.0) / seconds
        if sampled and self._server.decode is not None:
            write_step(run.directory / ROLLOUTS, run.step + 1, _texts(sampled, self._server.decode))
        run.lines.append([{"step": run.step + 1, **dict(sorted(row.items()))}], durable=False)
        run.step, run.seq, run.at = run.step + 1, int(row["request"]), now
        self._write_state(model, "running")

    def _write_state(self, model: str, state: str) -> None:
        run = self._run(model)
        if state == "finished":
            run.fields.setdefault("ended", _date(self._server.hub.clock()))
        self._write_status(run, state, REASONS.get(state))
        self._states[model] = state
        if state == "finished":
            self.forget(model)
            del self._states[model]

    def _write_status(self, run: ModelRun, state: str, why: str | None) -> None:
        status = {"state": state, "step": run.step, "last_error": why, **run.fields}
        status["heartbeat"] = _date(self._server.hub.clock())
        write_whole(run.directory / STATUS, json_line(status), durable=False)

    def _write_log(self, run: ModelRun, text: str) -> None:
        path = run.directory / "logs" / LOG
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(f"{_date(self._server.hub.clock())} INFO {text}\n")


@contextmanager
def _noted(model: str) -> Iterator[None]:
    """What a run's folder does not take is said in the server's log, whatever it was: training goes on."""
    try:
        yield
    except Exception as error:
        logger.warning("the run of %s could not be written: %s", model, error)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _texts(data: Sequence[Datum], decode: Callable[[list[int]], str]) -> Iterator[dict[str, Any]]:
    """Rows of rollouts without their tokens. A prompt ends where the first token has a logprob or an advantage."""
    groups: dict[str, int] = {}
    for number, datum in enumerate(data):
        advantages = datum.inputs["advantages"]
        sampled = (datum.inputs["logprobs"] != 0) | (advantages != 0)
        start = int(sampled.argmax()) if sampled.any() else len(datum.ids) - 1
        prompt = decode(datum.ids[: start + 1])
        yield {
            "group": str(groups.setdefault(prompt, len(groups))),
            "example_id": number,
            "prompt": prompt,
            "completion": decode(datum.inputs["target_tokens"][start:].tolist()),
            "reward": None,
            "advantage": float(advantages[sampled].mean()) if sampled.any() else 0.0,
        }
