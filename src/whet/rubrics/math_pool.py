"""A pool of processes that compare mathematical answers, so that a pathological one does not block the others.

Processes start when there is work for them and end when their input closes, also when this process is killed. The event
loop only ever waits for a line of text.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator

from whet.errors import InfraError, MissingExtraError

RESPONSE_SECONDS = 0.4  # CPU seconds for a response whose expected answer is read at once; the usual is milliseconds
START_SECONDS = 120.0  # importing sympy on a machine that is busy with other things
STUCK_SECONDS = 120.0  # beyond its CPU seconds: a worker that uses no CPU and does not respond


class MathPool:
    """At most `max_workers` processes; belongs to the event loop it is first used on."""

    def __init__(self, max_workers: int) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError("MathRubric, for answers that are not plain numbers,", "math")
        self._places = asyncio.Semaphore(max_workers)
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._end_of_loop: AsyncGenerator[None, None] | None = None

    async def equal(self, answer: str, response: str, seconds: float) -> bool | None:
        """Whether the two are the same mathematically; None where that takes too much CPU time.

        That is more than `seconds`, or more than `RESPONSE_SECONDS` for a response whose expected answer was read at
        once. A worker that dies for another reason is replaced and the request repeated once; then `InfraError`.
        """
        async with self._places:
            question = json.dumps([answer, response, seconds, RESPONSE_SECONDS]).encode() + b"\n"
            for _ in range(2):
                worker = self._idle.pop() if self._idle else await self._start()
                try:
                    verdict = await _ask(worker, question, seconds + STUCK_SECONDS)
                except BaseException:  # cancelled: its answer must not be taken for that of the next question
                    await self._end(worker)
                    raise
                if verdict is not None:
                    self._idle.append(worker)
                    return verdict if isinstance(verdict, bool) else None
                await self._end(worker)
            raise InfraError(f"the math-verify process died twice on the answer {response[:200]!r}")

    async def close(self) -> None:
        self._idle.clear()
        for worker in list(self._all):
            await self._end(worker)

    async def _start(self) -> Process:
        # Not multiprocessing: a fork of a process with threads can deadlock, and spawn imports the main module again.
        if self._end_of_loop is None:
            self._end_of_loop = self._close_with_loop()
            await anext(self._end_of_loop)
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "whet.rubrics.math_worker",
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            process_group=0,
        )
        self._all.add(worker)
        if await _read(worker, START_SECONDS) != "ready":
            code = await self._end(worker)
            raise InfraError(f"the math-verify process did not start (exit code {code})")
        return worker

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """An event loop closes the generators begun on it before it ends: the last moment to end its processes well."""
        try:
            yield
        finally:
            await self.close()

    async def _end(self, worker: Process) -> int:
        """Kill the process, and the fork of it that compares, unless they are dead already; its exit code."""
        assert worker.stdout is not None
        assert worker.stdin is not None
        if not worker.stdout.at_eof():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
        code = await worker.wait()
        with contextlib.suppress(
            RuntimeError
        ):  # another task waits for the end of the output, which comes with the fork's
            await worker.stdout.read()
        worker.stdin.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await worker.stdin.wait_closed()
        self._all.discard(worker)
        return code


async def _ask(worker: Process, question: bytes, seconds: float) -> bool | str | None:
    """The worker's verdict; None where it has died or said nothing in time."""
    assert worker.stdin is not None
    try:
        worker.stdin.write(question)
        await worker.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        return None
    return await _read(worker, seconds)


async def _read(worker: Process, seconds: float) -> bool | str | None:
    assert worker.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            line = await worker.stdout.readline()
    except TimeoutError:
        return None
    verdict: bool | str | None = json.loads(line) if line.endswith(b"\n") else None
    return verdict


def usable_cores() -> int:
    """The cores this process may run on. More workers than that gain nothing, and keep the event loop from its own."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
