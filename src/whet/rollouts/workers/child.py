"""A worker as its session sees it: started, connected, given jobs, dead, ended; and its messages.

What runs the code of environments gets to unpickle nothing in the session: its messages are a line of JSON, and after
it, as they stand in the file, rows. To a worker messages are pickled tuples: dataset rows are any Python values.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import threading
import time
from collections.abc import Mapping
from typing import Any

from whet.rollouts.jobs import RolloutJob
from whet.rollouts.workers.started import LocalProcess, Starter
from whet.system.channel import BrokenFrameError, Channel
from whet.types import Response

LOOK_S = 1.0  # for what a dead worker has sent to arrive, and for one that has hung up to be gone


class Given:
    """A job that a worker has, and how many of its rollouts are still in flight."""

    __slots__ = ("answers", "in_flight", "job", "over")

    def __init__(self, job: RolloutJob) -> None:
        self.job, self.in_flight = job, len(job.indices)
        self.answers: dict[int, Response] = {}  # of a model of this process, where the job's states are wanted
        self.over: asyncio.Event | None = None  # set once it has ended; there where its result is not wanted any more


class Child:
    """One worker."""

    def __init__(self, number: int, start: Starter = LocalProcess) -> None:
        self.number = number
        self.ready = self.was_ready = False
        self.given: dict[int, Given] = {}
        self.busy = 0  # rollouts that it has in flight
        self.channel: Channel | None = None
        self.complaint: str | None = None  # why it was ended, where it did not end by itself
        self.heard = 0  # frames of it
        self._sent = self._settled = 0  # frames to it, and those that it has nothing to do for any more
        self._owes_since = 0.0
        self._started = start(number)

    async def connect(self) -> Channel:
        """The channel to it; closed once the worker has ended, also where a process that it started has not."""
        loop = asyncio.get_running_loop()
        end = await asyncio.to_thread(lambda: self._started.socket)
        self.channel = channel = await Channel.over(end)

        def watch() -> None:
            self._started.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the channel with it
                loop.call_soon_threadsafe(loop.call_later, LOOK_S, channel.abort)

        threading.Thread(target=watch, name=f"whet worker {self.number}", daemon=True).start()
        return channel

    @property
    def pid(self) -> int:
        return self._started.pid

    def send(self, *message: Any) -> None:
        """Raises what `pickle` raises for a value that cannot be sent."""
        assert self.channel is not None
        self.channel.send_object(message)
        if self._settled == self._sent:
            self._owes_since = time.monotonic()
        self._sent += 1

    def settled(self, frames: int) -> None:
        """It has done all that it can do for so many frames without waiting for something."""
        self._settled = frames
        self._owes_since = time.monotonic()

    def owes(self, patience_s: float) -> bool:
        """Whether it has something to do, and was not silent for so many seconds about it."""
        return self.ready and self._settled < self._sent and time.monotonic() - self._owes_since < patience_s

    def give(self, number: int, job: RolloutJob, row: Mapping[str, Any]) -> Given:
        """Send a job. Raises what `pickle` raises for a row that cannot be sent."""
        self.send("job", number, job, row)
        given = self.given[number] = Given(job)
        self.busy += len(job.indices)
        return given

    def freed(self, number: int) -> None:
        """A rollout of a job has finished, and its slot is free while it is scored."""
        given = self.given.get(number)
        if given is not None and given.in_flight:
            given.in_flight -= 1
            self.busy -= 1

    def job(self, number: int) -> Given:
        """Raises `BrokenFrameError` for a job that this worker does not have."""
        if number not in self.given:
            raise BrokenFrameError(f"a result of job {number}, which it does not have")
        return self.given[number]

    def done(self, number: int) -> None:
        """A job is over."""
        given = self.given.pop(number)
        self.busy -= given.in_flight
        if given.over is not None:
            given.over.set()

    def abandoned(self) -> list[RolloutJob]:
        """The jobs that it had when it died, but for those whose result is not wanted any more."""
        given = list(self.given.values())
        self.given.clear()
        self.busy = 0
        for one in given:
            if one.over is not None:
                one.over.set()
        return [one.job for one in given if one.over is None]

    async def end(self) -> None:
        """Its channel is closed: wait a moment for it to end, else kill it with all it has started."""
        if not await asyncio.to_thread(self._started.wait, LOOK_S):
            self.kill()
            await asyncio.to_thread(self._started.wait)
        self._started.close()
        if self.channel is not None:
            self.channel.abort()
        else:
            self._started.socket.close()

    def kill(self) -> None:
        self._started.kill()

    @property
    def fate(self) -> str:
        """How it ended."""
        return self.complaint or self._started.fate


def is_picklable(value: Any) -> str | None:
    """Why `value` cannot be sent to a worker; None where it can."""
    try:
        pickle.dumps(value)
    except Exception as error:  # pickle raises whatever the objects' own methods raise
        return str(error) or type(error).__name__
    return None


FIELDS: dict[str, tuple[str, ...]] = {
    "ready": (),
    "alive": (),
    "rows": ("job", "indices"),
    "states": ("job", "indices"),
    "ended": ("job",),
    "freed": ("job",),
    "settled": ("frames",),
    "spent": ("cost", "unpriced_tokens"),
    "log": ("logger", "level", "text"),
    "ask": ("number", "source", "rollout", "turn", "model", "job"),
    "forget": ("number",),
    "release": ("rollout",),
    "mistake": ("error",),
    "bug": ("traceback",),
}
"""The messages of a worker, and their fields."""


def read_head(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Head and body of a worker's frame. Raises `BrokenFrameError` where it is none, or lacks what its kind has."""
    line, _, body = frame.partition(b"\n")
    try:
        head = json.loads(line)
    except ValueError as error:
        raise BrokenFrameError(f"a head that is not JSON ({error})") from None
    if not isinstance(head, dict):
        raise BrokenFrameError("a head that is no object")
    kind = head.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise BrokenFrameError(f"a message of the kind {kind!r}")
    lacking = [name for name in FIELDS[kind] if name not in head]
    if lacking:
        raise BrokenFrameError(f"a message of the kind {kind!r} without {', '.join(lacking)}")
    words = head.get("error", ["", "", ""])
    if not (isinstance(words, list) and len(words) == 3 and all(isinstance(word, str) for word in words)):
        raise BrokenFrameError("an error that is not its class, its text and its line")
    return head, body
