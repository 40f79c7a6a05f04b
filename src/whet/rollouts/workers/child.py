"""A worker as its session sees it: started, connected, dead, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from whet.rollouts.jobs import RolloutJob
from whet.rollouts.workers.channel import BrokenFrameError, Channel

# `-c` and not `-m`, with the session's own import path: a folder that happens to be called like a module of ours in the
# working directory is not imported in its place, and environments are found where the session found them.
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from whet.rollouts.workers.process import main; main()"
LOOK_S = 1.0  # for what a dead worker has sent to arrive, and for one that has hung up to be gone
STDERR = 2


class Given:
    """A job that a worker has, and how many of its rollouts are still in flight."""

    __slots__ = ("in_flight", "job")

    def __init__(self, job: RolloutJob) -> None:
        self.job, self.in_flight = job, len(job.indices)


class Child:
    """One worker process."""

    def __init__(self, number: int) -> None:
        """Start it, in a session of its own: Ctrl-C in a terminal does not reach it."""
        self.number = number
        self.ready = self.was_ready = False
        self.given: dict[int, Given] = {}
        self.busy = 0  # rollouts that it has in flight
        self.channel: Channel | None = None
        self.complaint: str | None = None  # why it was ended, where it did not end by itself
        self._end, theirs = socket.socketpair()
        reading, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, json.dumps(sys.path), str(theirs.fileno()), str(reading)],
                pass_fds=(theirs.fileno(), reading),
                stdin=subprocess.DEVNULL,
                stdout=STDERR,  # what an environment prints does not mix with a summary as JSON
                start_new_session=True,
            )
        except OSError:
            self._end.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(reading)

    async def connect(self) -> Channel:
        """The channel to it; closed once the process has ended, also where a process that it started has not."""
        loop = asyncio.get_running_loop()
        self.channel = channel = await Channel.over(self._end)

        def watch() -> None:
            self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the channel with it
                loop.call_soon_threadsafe(loop.call_later, LOOK_S, channel.abort)

        threading.Thread(target=watch, name=f"whet worker {self.number}", daemon=True).start()
        return channel

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, number: int, job: RolloutJob, row: Mapping[str, Any]) -> None:
        """Send a job. Raises what `pickle` raises for a row that cannot be sent."""
        assert self.channel is not None
        self.channel.send_object(("job", number, job, row))
        self.given[number] = Given(job)
        self.busy += len(job.indices)

    def freed(self, number: int) -> None:
        """A rollout of a job has finished, and its slot is free while it is scored."""
        given = self.given.get(number)
        if given is not None and given.in_flight:
            given.in_flight -= 1
            self.busy -= 1

    def done(self, number: int) -> RolloutJob:
        """A job is over. Raises `BrokenFrameError` for one that this worker does not have."""
        given = self.given.pop(number, None)
        if given is None:
            raise BrokenFrameError(f"rows of job {number}, which it does not have")
        self.busy -= given.in_flight
        return given.job

    def abandoned(self) -> list[RolloutJob]:
        """The jobs that it had when it died."""
        jobs = [given.job for given in self.given.values()]
        self.given.clear()
        self.busy = 0
        return jobs

    async def end(self) -> None:
        """Its channel is closed: wait a moment for it to end, else kill it with all it has started."""
        try:
            await asyncio.to_thread(self._process.wait, LOOK_S)
        except subprocess.TimeoutExpired:
            self.kill()
            await asyncio.to_thread(self._process.wait)
        os.close(self._lifeline)
        if self.channel is not None:
            self.channel.abort()
        else:
            self._end.close()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def fate(self) -> str:
        """How the process ended."""
        if self.complaint is not None:
            return self.complaint
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exited with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"killed by {name}{', as when memory runs out' if name == 'SIGKILL' else ''}"


def is_picklable(value: Any) -> str | None:
    """Why `value` cannot be sent to a worker; None where it can."""
    import pickle

    try:
        pickle.dumps(value)
    except Exception as error:  # pickle raises whatever the objects' own methods raise
        return str(error) or type(error).__name__
    return None
