"""A worker process: its own instances of the environments, its own connections, one event loop.

    read what to do ──▶ load the environments ──▶ ready ──▶ jobs in, rows out ──▶ `stop`, or the session has ended

A worker ends by itself when its session does, however that ended: it sees the socket close, or, where the code of an
environment keeps the event loop from looking, a thread sees a pipe close and ends the process and what it started.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.clients.client import Client
from whet.clients.usage import charge
from whet.errors import WhetError
from whet.rollouts.jobs import JobEnv, Parts, RolloutJob, RolloutRecipe, run_job
from whet.rollouts.limits import SharedLimit
from whet.rollouts.pace import paced
from whet.rollouts.workers.channel import LENGTH_BYTES, Channel, error_from_words, error_to_words
from whet.system import cancellation
from whet.system.cancellation import cancel
from whet.types import Messages, Response, SamplingArgs, State, Tool

GRACE_S = 5.0  # for rollouts and environments to be cleaned up once the session is gone


@dataclass(frozen=True, slots=True)
class Orders:
    """The first frame: what this worker is for."""

    make_parts: Callable[[], Parts]  # pickled by its import path
    recipes: Sequence[RolloutRecipe]
    local: Sequence[bool]  # whether the model of each source runs in the session's process
    limits: Sequence[int]  # rollouts of each source that may be in flight here
    beat_s: float | None  # seconds between two signs of life; None: none are expected


def main() -> None:
    """`python -c ... SOCKET LIFELINE`: work until `stop`."""
    end, lifeline = socket.socket(fileno=int(sys.argv[-2])), int(sys.argv[-1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session, which sends `stop`
    end.set_inheritable(False)
    os.set_inheritable(lifeline, False)
    threading.Thread(target=end_with_session, args=(lifeline,), name="whet lifeline", daemon=True).start()
    orders = _read_orders(end)
    if orders is None:
        return
    parts = orders.make_parts()
    try:
        # Here and not on the event loop: what loads an environment may want one of its own.
        loaded = [parts.environment(source, max(1, limit)) for source, limit in enumerate(orders.limits)]
        problem = None
    except WhetError as error:
        loaded, problem = [], error
    cancellation.run(_work(end, orders, parts, loaded, problem))


def end_with_session(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns when the session has ended
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


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
    loaded: Sequence[JobEnv],
    problem: WhetError | None,
) -> None:
    channel = await Channel.over(end)
    try:
        if problem is not None:
            channel.send({"kind": "mistake", "error": error_to_words(problem)})
            await channel.flushed()
            return
        worker = _Worker(channel, orders, parts, loaded)
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


class _Worker:
    """Jobs that come in are run; rows, and questions to a model of the session's process, go out."""

    def __init__(self, channel: Channel, orders: Orders, parts: Parts, environments: Sequence[JobEnv]) -> None:
        self._channel, self._orders, self._parts, self._environments = channel, orders, parts, environments
        permits = SharedLimit()
        self._limits = [permits.up_to(limit) for limit in orders.limits]
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._sessions_model = SessionsModel(channel)

    async def run(self) -> None:
        """Until the session says stop, or is gone."""
        self._channel.send({"kind": "ready"})
        if self._orders.beat_s is not None:
            self._beating = asyncio.get_running_loop().create_task(self._beat(self._orders.beat_s))
        while (frame := await self._channel.receive()) is not None:
            kind, *content = pickle.loads(frame)
            if kind == "job":
                task = asyncio.get_running_loop().create_task(self._run(*content))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif kind == "answer":
                self._sessions_model.answered(*content)
            else:
                assert kind == "stop"
                return

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        await cancel(self._tasks)

    async def _beat(self, seconds: float) -> None:
        """Say now and then that the event loop turns."""
        while True:
            self._channel.send({"kind": "alive"})
            await asyncio.sleep(seconds)

    async def _run(self, number: int, job: RolloutJob, row: Mapping[str, Any]) -> None:
        source, orders = job.source, self._orders
        try:
            client: Client[Any, Any, Any, Any] = (
                self._sessions_model.of(source) if orders.local[source] else await self._parts.client(source)
            )
            found = await run_job(
                job,
                self._environments[source],
                client,
                orders.recipes[source],
                row,
                self._limits[source],
                on_rollout=lambda _: self._channel.send({"kind": "freed", "job": number}),
            )
        except WhetError as error:
            self._channel.send({"kind": "mistake", "error": error_to_words(error)})
        except Exception:
            self._channel.send({"kind": "bug", "traceback": traceback.format_exc()})
        else:
            head = {"kind": "rows", "job": number, "indices": [one.index for one in found]}
            self._channel.send(head, b"".join(one.line for one in found))
        await self._channel.flushed()


class SessionsModel(Client[None, Any, Any, Any]):
    """The model that runs in the session's process, one request per turn.

    Seeds, tokens and what is continued are that client's own; only the conversation goes there, and the answer back.
    """

    def __init__(self, channel: Channel, source: int = 0, shared: SessionsModel | None = None) -> None:
        super().__init__(None)
        self._channel, self._source = channel, source
        self._waiting: dict[int, asyncio.Future[Response]] = {} if shared is None else shared._waiting
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
        head = {
            "kind": "ask",
            "number": number,
            "source": self._source,
            "rollout": None if state is None else state["trajectory_id"],
            "turn": 0 if state is None else len(state["trajectory"]),
            "model": model,
        }
        body = {"prompt": prompt, "sampling_args": sampling_args, "tools": tools}
        self._channel.send(head, json.dumps(body).encode())
        try:
            response = await answer
            charge(response)
            return response
        except asyncio.CancelledError:
            self._channel.send({"kind": "forget", "number": number})
            raise
        finally:
            del self._waiting[number]

    async def release(self, state: State) -> None:
        self._channel.send({"kind": "release", "source": self._source, "rollout": state["trajectory_id"]})

    def answered(self, number: int, response: Response | None, error: tuple[str, str] | None) -> None:
        """What the session's model said to a question, or why it said nothing."""
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        if error is not None:
            answer.set_exception(error_from_words(*error))
        else:
            assert response is not None
            answer.set_result(response)
