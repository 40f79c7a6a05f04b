"""A worker process: its own instances of the environments, its own connections, one event loop.

    read what to do ──▶ load the environments ──▶ ready ──▶ jobs in, results out ──▶ `stop`, or the session has ended

A worker ends by itself when its session does, however that ended: it sees the socket close, or, where the code of an
environment keeps the event loop from looking, a thread sees a pipe close and ends the process and what it started.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from whet.clients.client import Client
from whet.clients.usage import Spending, charge, spending
from whet.errors import WhetError
from whet.rollouts.jobs import AnyClient, JobEnv, Parts, RolloutJob, RolloutRecipe, run_job
from whet.rollouts.limits import SharedLimit
from whet.rollouts.pace import paced
from whet.rollouts.workers.state_record import Answers, state_line, turns_before
from whet.system import cancellation
from whet.system.cancellation import cancel
from whet.system.channel import LENGTH_BYTES, Channel, error_from_words, error_to_words
from whet.system.children import kill_group, when_closed
from whet.system.quiet import Quiet
from whet.types import Messages, Response, SamplingArgs, State, Tool

GRACE_S = 5.0  # for rollouts and environments to be cleaned up once the session is gone


@dataclass(frozen=True, slots=True)
class Orders:
    """The first frame: what this worker is for."""

    make_parts: Callable[[], Parts]  # pickled by its import path
    recipes: Sequence[RolloutRecipe]
    local: Sequence[bool]  # whether the model of each source runs in the session's process
    limits: Sequence[int]  # rollouts of each source that may be in flight here; 0: none of it are run here
    beat_s: float | None  # seconds between two signs of life; None: none are expected
    settles: bool = False  # whether the session wants to know when nothing is left to do here but wait
    logs: bool = False  # whether it wants what is logged and warned of here


def main() -> None:
    """`python -c ... SOCKET LIFELINE`: work until `stop`."""
    end, lifeline = socket.socket(fileno=int(sys.argv[-2])), int(sys.argv[-1])
    for number in (
        signal.SIGINT,
        signal.SIGHUP,
    ):  # Ctrl-C and a closed terminal are for the session, which sends `stop`
        signal.signal(number, signal.SIG_IGN)
    end.set_inheritable(False)
    when_closed(lifeline, end_of_session)
    serve(end)


def serve(end: socket.socket) -> None:
    """Work for the session at the other end of a stream socket, until it says `stop` or is gone.

    What the session sends is unpickled: who connects it has to know that it is the session.
    """
    orders = _read_orders(end)
    if orders is None:
        return
    parts = orders.make_parts()
    try:
        # Here and not on the event loop: what loads an environment may want one of its own.
        loaded = {source: parts.environment(source, limit) for source, limit in enumerate(orders.limits) if limit}
        problem = None
    except WhetError as error:
        loaded, problem = {}, error
    cancellation.run(_work(end, orders, parts, loaded, problem))


def end_of_session() -> None:
    """In a thread: what does not end by itself is killed."""
    time.sleep(GRACE_S)
    kill_group(0)


def _read_orders(end: socket.socket) -> Orders | None:
    """The first frame; None where the session is gone before it was whole."""
    length = int.from_bytes(end.recv(LENGTH_BYTES, socket.MSG_WAITALL))
    data = end.recv(length, socket.MSG_WAITALL)
    if not data or len(data) < length:
        return None
    orders: Orders = pickle.loads(data)
    return orders


async def _work(
    end: socket.socket,
    orders: Orders,
    parts: Parts,
    loaded: Mapping[int, JobEnv],
    problem: WhetError | None,
) -> None:
    channel = await Channel.over(end)
    try:
        if problem is not None:
            channel.send({"kind": "mistake", "error": error_to_words(problem)})
            await channel.flushed()
            return
        with spending() as spent, logged_by_session(channel) if orders.logs else nullcontext():
            worker = _Worker(channel, orders, parts, loaded, spent)
            try:
                if any(orders.local):
                    await worker.run()
                else:
                    with paced():
                        await worker.run()
            finally:
                await worker.close()
    finally:
        await parts.close()


@contextmanager
def logged_by_session(channel: Channel) -> Iterator[None]:
    """Warnings and errors of any logger, and of `warnings.warn`, go to the session until the block ends."""
    handler, root = _SessionsLog(channel), logging.getLogger()
    logging.captureWarnings(True)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _SessionsLog(logging.Handler):
    """Sends records; from any thread."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(logging.WARNING)
        self._channel, self._loop = channel, asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        head = {"kind": "log", "logger": record.name, "level": record.levelno, "text": self.format(record)}
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._channel.send, head)


class _Worker:
    """Jobs that come in are run; results, and questions to a model of the session's process, go out."""

    def __init__(
        self, channel: Channel, orders: Orders, parts: Parts, environments: Mapping[int, JobEnv], spent: Spending
    ) -> None:
        self._channel, self._orders, self._parts, self._environments = channel, orders, parts, environments
        self._spent, self._reported = spent, Spending()
        permits = SharedLimit()
        self._limits = [permits.up_to(limit) for limit in orders.limits]
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._permits: dict[int, SessionPermits] = {}
        self._frames = self._settled = 0
        self._beating: asyncio.Task[None] | None = None
        self._sessions_model = SessionsModel(channel)

    async def run(self) -> None:
        """Until the session says stop, or is gone."""
        self._channel.send({"kind": "ready"})
        if self._orders.beat_s is not None:
            self._beating = asyncio.get_running_loop().create_task(self._beat(self._orders.beat_s))
        quiet = Quiet.here()
        if self._orders.settles and quiet is not None:
            quiet.on_idle = self._settle
        while (frame := await self._channel.receive()) is not None:
            kind, *content = pickle.loads(frame)
            self._frames += 1
            if kind == "job":
                self._begin(*content)
            elif kind == "enter":
                if (permits := self._permits.get(*content)) is not None:
                    permits.enter()
            elif kind == "answer":
                self._sessions_model.answered(*content)
            elif kind == "cancel":
                self._channel.send({"kind": "alive"})
                if (task := self._jobs.get(*content)) is not None:
                    task.cancel()
            else:
                assert kind == "stop"
                return

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        await cancel(self._jobs.values())

    def _begin(self, number: int, job: RolloutJob, row: Mapping[str, Any]) -> None:
        if job.whole:
            self._permits[number] = SessionPermits(self._channel, number)
        task = self._jobs[number] = asyncio.get_running_loop().create_task(self._run(number, job, row))
        task.add_done_callback(lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        self._permits.pop(number, None)
        if self._jobs.pop(number).cancelled():
            self._channel.send({"kind": "ended", "job": number})

    def _settle(self) -> bool:
        """Nothing is left to do here for what has come in; tells the session so, once."""
        if self._settled == self._frames:
            return False
        self._settled = self._frames
        self._channel.send({"kind": "settled", "frames": self._frames})
        return True

    async def _beat(self, seconds: float) -> None:
        """Say now and then that the event loop turns."""
        while True:
            self._channel.send({"kind": "alive"})
            await asyncio.sleep(seconds)

    async def _run(self, number: int, job: RolloutJob, row: Mapping[str, Any]) -> None:
        try:
            head, body = await self._result(number, job, row)
        except WhetError as error:
            self._channel.send({"kind": "mistake", "error": error_to_words(error)})
        except Exception:
            self._channel.send({"kind": "bug", "traceback": traceback.format_exc()})
        else:
            self._report_spending()
            self._channel.send(head, body)
        await self._channel.flushed()

    async def _result(self, number: int, job: RolloutJob, row: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The message with the rows of a job, or with its states."""
        source, orders = job.source, self._orders
        recipe, env = orders.recipes[source], self._environments[source]
        client: AnyClient = (
            self._sessions_model.of(source) if orders.local[source] else await self._parts.client(source)
        )
        if job.whole:
            answers = Answers()
            _job.set((number, answers))
            states = await job.attempt(recipe, env, client, row, self._permits[number])
            lines = [state_line(state, answers) for state in states]
            return {"kind": "states", "job": number, "indices": job.indices}, b"".join(lines)
        finished = await run_job(
            job,
            env,
            client,
            recipe,
            row,
            self._limits[source],
            on_rollout=lambda _: self._channel.send({"kind": "freed", "job": number}),
        )
        head = {"kind": "rows", "job": number, "indices": [one.index for one in finished]}
        return head, b"".join(one.line for one in finished)

    def _report_spending(self) -> None:
        """What models have cost here since the last report, for the session's budget."""
        now, before = self._spent, self._reported
        cost = None if now.cost is None else now.cost - (before.cost or 0.0)
        tokens = now.unpriced_tokens - before.unpriced_tokens
        self._reported = replace(now)
        if cost or tokens:
            self._channel.send({"kind": "spent", "cost": cost, "unpriced_tokens": tokens})


class SessionPermits:
    """The permits of one job's rollouts, which the session hands out; a `Limit`."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel, self._number = channel, number
        self._handed_out = asyncio.Semaphore(0)

    def enter(self) -> None:
        """The session has a permit for one rollout more."""
        self._handed_out.release()

    async def __aenter__(self) -> None:
        await self._handed_out.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._channel.send({"kind": "freed", "job": self._number})


_job: ContextVar[tuple[int, Answers] | None] = ContextVar("whet_worker_job", default=None)
"""The job whose states are wanted, in its task and all that it starts."""


class SessionsModel(Client[None, Any, Any, Any]):
    """The model that runs in the session's process, one request per turn.

    Seeds, tokens and what is continued are that client's own; only the conversation goes there, and the answer back.
    """

    def __init__(self, channel: Channel, source: int = 0, shared: SessionsModel | None = None) -> None:
        super().__init__(None)
        self._channel, self._source = channel, source
        self._waiting: dict[int, asyncio.Future[Response]] = {} if shared is None else shared._waiting
        self._known: set[str] = set() if shared is None else shared._known  # rollouts that the session has heard of
        self._numbers: Iterator[int] = itertools.count() if shared is None else shared._numbers

    def of(self, source: int) -> SessionsModel:
        """The model of one source."""
        return SessionsModel(self._channel, source, self)

    async def get_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Tool] | None = None,
        *,
        state: State | None = None,
        **kwargs: Any,
    ) -> Response:
        number = next(self._numbers)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        job = _job.get()
        head = {
            "kind": "ask",
            "number": number,
            "source": self._source,
            "rollout": None if state is None else state["trajectory_id"],
            "turn": 0 if state is None else len(state["trajectory"]),
            "model": model,
            "job": None if job is None else job[0],
        }
        body: dict[str, Any] = {"prompt": prompt, "sampling_args": sampling_args, "tools": tools}
        if state is not None and state["trajectory_id"] not in self._known:
            self._known.add(state["trajectory_id"])
            if state["trajectory"]:
                body["before"] = turns_before(state["trajectory"])
        self._channel.send(head, json.dumps(body).encode())
        try:
            response = await answer
            charge(response)
            if job is not None:
                job[1].note(number, response)
            return response
        except asyncio.CancelledError:
            self._channel.send({"kind": "forget", "number": number})
            raise
        finally:
            del self._waiting[number]

    async def release(self, state: State) -> None:
        self._known.discard(state["trajectory_id"])
        self._channel.send({"kind": "release", "source": self._source, "rollout": state["trajectory_id"]})

    def answered(self, number: int, response: Response | None, error: tuple[str, str, str] | None) -> None:
        """What the session's model said to a question, or why it said nothing."""
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        if error is not None:
            answer.set_exception(error_from_words(*error))
        else:
            assert response is not None
            answer.set_result(response)
