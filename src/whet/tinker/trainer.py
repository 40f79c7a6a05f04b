"""The one thread that trains: it takes from the log what is ready, of all models in turn, and records the answers."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from tinker import types

from whet.errors import WhetError
from whet.hub.errors import HubError
from whet.hub.storage.database import LOG_ONLY
from whet.rl.learner.adapters.work import AdamParams, AdapterOutput, AdapterWork
from whet.tinker import log, states, wire
from whet.tinker.answer_box import Answer
from whet.tinker.log import RequestEnd, RequestHead
from whet.tinker.runs import ModelRuns
from whet.tinker.server import TinkerServer
from whet.tinker.storage.tables import TinkerModel

IDLE_S = 1.0
TIDY_S = 30.0
logger = logging.getLogger(__name__)


class Trainer:
    """Carries out requests. What is in memory is a copy: each model can be made again from the log."""

    def __init__(self, server: TinkerServer) -> None:
        self._server = server
        self._loaded: OrderedDict[str, int] = OrderedDict()  # models in memory and their bytes, the last used last
        self._steps: dict[str, int] = {}  # since the last state
        self._bytes: Counter[str] = Counter()  # of bodies since then
        self._runs = ModelRuns(server)
        self._thread = threading.Thread(target=self._run, name="whet-tinker-trainer", daemon=True)
        self._stopping = False
        self._tidied = 0.0

    def start(self) -> None:
        states.clean(self._server)
        self._runs.start()
        self._thread.start()

    def stop(self) -> None:
        """After the request that is being computed; the others stay in the log."""
        self._stopping = True
        self._server.work.set()
        self._thread.join()
        self._runs.stop()

    def _run(self) -> None:
        while not self._stopping:
            self._server.work.clear()
            try:
                busy = self.tick()
            except Exception:  # a full disk, say: the log is as before
                logger.exception("the training thread could not record what it did; it tries again")
                for model in list(self._loaded):
                    self._forget(model)
                busy = False
            if not busy:
                self._server.work.wait(IDLE_S)

    def tick(self) -> bool:
        """One request of each model that has one ready; whether there was any."""
        hub = self._server.hub
        with hub.database.read() as session:
            ready = log.heads(session)
        passes = [head for head in ready if head.kind in (log.FORWARD, log.FORWARD_BACKWARD)]
        for batch in self._batches(passes):
            self._finish(self._passes(batch))
        ends = self._each([head for head in ready if head.kind == log.OPTIM_STEP])
        self._finish(ends)
        for end in ends:
            if not end.failed:
                self._keep_state(end.head)
        passes_and_steps = (log.FORWARD, log.FORWARD_BACKWARD, log.OPTIM_STEP)
        self._finish(self._each([head for head in ready if head.kind not in passes_and_steps]))
        if not ready and hub.clock() - self._tidied > TIDY_S:
            self._tidied = hub.clock()
            for model in states.tidy(self._server):
                self._forget(model)
            self._runs.look()
        return bool(ready)

    def _batches(self, heads: Sequence[RequestHead]) -> list[list[RequestHead]]:
        batches: list[list[RequestHead]] = []
        size = 0
        for head in heads:
            if not batches or size + head.size > self._server.limits.batch_bytes:
                batches.append([])
                size = 0
            batches[-1].append(head)
            size += head.size
        return batches

    # Models in memory

    def _forget(self, model: str) -> None:
        if self._loaded.pop(model, None) is not None:
            self._server.bank.remove(model)
        self._steps.pop(model, None)
        self._bytes.pop(model, None)
        self._runs.forget(model)

    def _ensure(self, model_id: str) -> None:
        """The model as the log says that it is now. Raises `WhetError` where that cannot be."""
        if model_id in self._loaded:
            self._loaded.move_to_end(model_id)
            return
        with self._server.hub.database.read() as session:
            model = session.get_one(TinkerModel, model_id)
            repeated = log.to_repeat(session, model)
        self._add(model)
        try:
            if model.state is not None:
                self._server.bank.load(model_id, self._server.states / model.state)
            for head in repeated:
                self._repeat(head)
        except BaseException:
            self._forget(model_id)
            raise

    def _add(self, model: TinkerModel) -> None:
        spec = self._server.spec_of(model.spec)
        needed = self._server.bank.bytes_of(spec)
        while self._loaded and sum(self._loaded.values()) + needed > self._server.limits.adapter_bytes:
            self._forget(next(iter(self._loaded)))
        self._server.bank.create(model.id, spec)
        self._loaded[model.id], self._steps[model.id] = needed, 0

    def _repeat(self, head: RequestHead) -> None:
        with self._server.hub.database.read() as session:
            body = log.bodies_of(session, [head.id])[head.id]
        self._bytes[head.model_id] += head.size
        if head.kind == log.OPTIM_STEP:
            self._step(head, body)
            self._runs.repeated(head.model_id)
            return
        work = self._work(head, body)
        (output,) = self._server.bank.forward_backward([work])
        if isinstance(output, WhetError):
            raise output
        self._runs.passed(head.model_id, work.data, output)

    # Requests

    def _work(self, head: RequestHead, body: bytes) -> AdapterWork:
        data, loss = wire.read(wire.parse(body), self._server.base.limits)
        return AdapterWork(head.model_id, data, loss, backward=head.kind == log.FORWARD_BACKWARD)

    def _passes(self, heads: Sequence[RequestHead]) -> list[RequestEnd]:
        """Forward and backward passes of several models in one."""
        ends: list[RequestEnd] = []
        works: list[tuple[RequestHead, AdapterWork]] = []
        with self._server.hub.database.read() as session:
            bodies = log.bodies_of(session, [head.id for head in heads])
        for head in heads:
            try:
                work = self._work(head, bodies[head.id])
                self._ensure(head.model_id)
                works.append((head, work))
            except Exception as error:
                ends.append(self._failed(head, error))
        # One that had to leave memory for another of this pass has its turn in the next.
        works = [(head, work) for head, work in works if head.model_id in self._loaded]
        try:
            outputs: Sequence[AdapterOutput | WhetError] = self._server.bank.forward_backward([w for _, w in works])
        except Exception as error:
            for head, _ in works:
                self._forget(head.model_id)  # its gradients may be anything now
            return [*ends, *(self._failed(head, error) for head, _ in works)]
        for (head, work), output in zip(works, outputs, strict=True):
            if isinstance(output, WhetError):
                ends.append(self._failed(head, output))
            else:
                if work.backward:
                    self._bytes[head.model_id] += head.size
                    self._runs.passed(head.model_id, work.data, output)
                ends.append(RequestEnd(head, wire.written(output)))
        return ends

    def _each(self, heads: Sequence[RequestHead]) -> list[RequestEnd]:
        """Requests that are no passes, one after the other."""
        if not heads:
            return []
        with self._server.hub.database.read() as session:
            bodies = log.bodies_of(session, [head.id for head in heads])
            of_these = select(TinkerModel).where(TinkerModel.id.in_([head.model_id for head in heads]))
            models = {model.id: model for model in session.scalars(of_these)}
        return [self._other(head, models[head.model_id], bodies) for head in heads]

    def _other(self, head: RequestHead, model: TinkerModel, bodies: Mapping[str, bytes]) -> RequestEnd:
        try:
            body = bodies[head.id]
            if head.kind == log.CREATE:
                self._add(model)
                return _answer(head, types.CreateModelResponse(model_id=model.id))
            if head.kind == log.UNLOAD:
                self._forget(model.id)
                states.unload(self._server, model.id)
                return _answer(head, types.UnloadModelResponse(model_id=model.id, type=log.UNLOAD))
            if head.seq == 0:  # a load makes the model
                self._add(model)
            else:
                self._ensure(model.id)
            if head.kind == log.OPTIM_STEP:
                return _answer(head, types.OptimStepResponse(metrics=self._step(head, body)))
            response, record, replaced = states.carry_out(self._server, head, model, body)
            return RequestEnd(head, response.model_dump_json().encode(), record=record, replaced=replaced)
        except Exception as error:
            if not isinstance(error, HubError):
                self._forget(head.model_id)
            return self._failed(head, error)

    def _step(self, head: RequestHead, body: bytes) -> dict[str, float]:
        given: Any = types.OptimStepRequest.model_validate_json(body).optim_params
        if not isinstance(given, types.AdamParams):
            raise HubError("invalid", f"optim_params: there is no optimiser '{given.type[:60]}' here, only adamw.")
        params = AdamParams(**given.model_dump())
        _check(params)
        metrics = self._server.bank.optim_step(head.model_id, params)
        self._steps[head.model_id] += 1
        self._runs.stepped(head.model_id, head.seq, params, metrics)
        return metrics

    def _keep_state(self, head: RequestHead) -> None:
        """After some steps, or many bytes, a state, so that a start repeats no more than those after it."""
        model, limits = head.model_id, self._server.limits
        if self._steps.get(model, 0) >= limits.state_every or self._bytes[model] >= limits.state_bytes:
            states.write(self._server, model, head.seq)
            self._steps[model] = self._bytes[model] = 0

    def _failed(self, head: RequestHead, error: Exception) -> RequestEnd:
        """A failure as the answer: of the user where the request was wrong, else of the server."""
        user = isinstance(error, WhetError)
        if not user:
            logger.error("the request %s of %s failed", head.id, head.model_id, exc_info=error)
        said = str(error) if user else f"the server failed with {type(error).__name__}; its log says more."
        return RequestEnd(
            head, json.dumps({"error": said, "category": "user" if user else "server"}).encode(), failed=True
        )

    def _finish(self, ends: Sequence[RequestEnd]) -> None:
        if not ends:
            return
        try:
            self._record(ends)
        except HubError as error:
            if error.code != "invalid":
                raise
            if len(ends) > 1:  # what one made contradicts another
                for end in ends:
                    self._finish([end])
                return
            ends = [self._failed(ends[0].head, error)]
            self._record(ends)
        self._runs.written(ends)

    def _record(self, ends: Sequence[RequestEnd]) -> None:
        with self._server.hub.database.write() as session:
            session.info[LOG_ONLY] = all(end.replaced is None for end in ends)
            log.finish(session, ends, self._server.hub.clock())
        answers = {end.head.id: Answer(end.head.owner, end.result, end.protobuf) for end in ends}
        self._server.answers.ready(answers, answers)
        for end in ends:
            if end.replaced is not None:
                states.remove(self._server, end.replaced)


def _check(params: AdamParams) -> None:
    """Raises `HubError` for a value that AdamW cannot have."""
    for name in ("learning_rate", "weight_decay", "grad_clip_norm", "eps"):
        if not 0 <= getattr(params, name) < math.inf:
            raise HubError("invalid", f"adam_params: {name} has to be a number that is not negative.")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(params, name) < 1:
            raise HubError("invalid", f"adam_params: {name} has to be in 0 to 1, without 1.")


def _answer(head: RequestHead, response: Any) -> RequestEnd:
    return RequestEnd(head, response.model_dump_json().encode())
