r"""`MathRubric`: the answer in the last `\boxed{}` is right when math-verify finds it equal to the expected one.

Plain integers and identical texts are compared on the spot; everything else goes to processes (`MathPool`) that are
limited in CPU time and memory. An answer that cannot be decided within the limit is wrong; a checker that breaks down
makes the rollout errored.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import math
import os
import re
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from whet.decorators import teardown
from whet.errors import InfraError, MissingExtraError
from whet.parsers.parser import Parser, extract_boxed_answer
from whet.parsers.think_parser import MaybeThinkParser
from whet.rubrics.rubric import Rubric
from whet.system.children import kill_group
from whet.types import Messages, RewardFunc

_INTEGER = re.compile(r"-?[0-9]{1,15}")
_EQUALITY = "whet.rubrics.math_equality"  # imports sympy, so only once something is compared in this process


class MathRubric(Rubric):
    """1 where the boxed answer is mathematically equal to the task's, checked by `math-verify` in worker processes."""

    def __init__(
        self,
        funcs: list[RewardFunc] | None = None,
        weights: list[float] | None = None,
        parser: Parser | None = None,
        max_workers: int = 8,
        timeout_seconds: float = 5,
        max_verify_chars: int = 50_000,
    ) -> None:
        """Make a rubric whose reward is 1 for the right answer and 0 for any other.

        Args:
            funcs: further reward functions.
            weights: their weights.
            parser: reads the answer out of a completion; otherwise, after any `</think>`, the last box.
            max_workers: processes that compare answers at once; no more than there are cores, but two at least.
            timeout_seconds: CPU seconds for one comparison; what takes longer is wrong.
            max_verify_chars: an answer longer than this is wrong.
        """
        parser = parser or MaybeThinkParser(extract_fn=partial(extract_boxed_answer, strict=True))
        super().__init__(funcs=funcs, weights=weights, parser=parser)
        self.max_workers = max_workers
        self.timeout_seconds = timeout_seconds
        self.max_verify_chars = max_verify_chars
        self._pool: tuple[asyncio.AbstractEventLoop, MathPool] | None = None
        self.add_reward_func(self.correct_answer)

    async def correct_answer(self, parser: Parser, completion: Messages, answer: Any, **kwargs: Any) -> float:
        """1 where the boxed answer equals the expected one, else 0.

        An expected answer of several parts, a list or the JSON of a list of texts, needs all of them in any order. None
        is no answer that a response could equal.
        """
        response, expected = parser.parse_answer(completion) or "", expected_text(answer)
        if expected is None:
            return 0.0
        if expected != str(answer):  # of several parts, which the response may give as a list too
            response = expected_text(response) or ""
        quick = equal_at_sight(expected, response)
        if quick is not None:
            return float(quick)
        if len(response) > self.max_verify_chars:
            return 0.0
        if parse is not _parse or verify is not _verify:  # replaced, which processes do not see
            return verify_response(response, expected, self.max_verify_chars, math.ceil(self.timeout_seconds))[0]
        return float(await self._math_pool().equal(expected, response, self.timeout_seconds) or False)

    @teardown
    async def stop_workers(self) -> None:
        if self._pool is not None:
            loop, pool = self._pool
            self._pool = None
            if loop is asyncio.get_running_loop():  # the processes of a closed loop have ended with it
                await pool.close()

    def _math_pool(self) -> MathPool:
        loop = asyncio.get_running_loop()
        if self._pool is None or self._pool[0] is not loop:
            self._pool = (loop, MathPool(min(self.max_workers, max(2, usable_cores()))))
        return self._pool[1]


def parse(text: str, **settings: Any) -> Any:
    """That of `math_verify`. A package may replace it; then answers are compared in this process."""
    return importlib.import_module("math_verify").parse(text, **settings)


def verify(gold: Any, target: Any, **settings: Any) -> bool:
    """That of `math_verify`, which may be replaced as `parse` may."""
    return bool(importlib.import_module("math_verify").verify(gold, target, **settings))


_parse, _verify = parse, verify


def verify_response(response: str, answer: str, max_verify_chars: int, timeout_seconds: int = 5) -> tuple[float, float]:
    """1 or 0 for a boxed answer's text, and the seconds this took; for the main thread. `MathRubric` has processes.

    What math-verify raises is 0, its time-outs too.
    """
    start = time.perf_counter()
    score = 0.0
    if response and len(response) <= max_verify_chars:
        library, equality = importlib.import_module("math_verify.errors"), importlib.import_module(_EQUALITY)
        try:
            expected, given = (
                equality.read(text, parse, parsing_timeout=timeout_seconds) for text in (answer, response)
            )
            score = float(equality.same(expected, given, verify, timeout_seconds=timeout_seconds))
        except (Exception, library.TimeoutException):
            score = 0.0
    return score, time.perf_counter() - start


def expected_text(answer: Any) -> str | None:
    """An answer as text: the parts of a list, or of a list in JSON, separated by commas; None where there is none."""
    if isinstance(answer, str) and answer.lstrip().startswith("["):
        try:
            parts = json.loads(answer)
        except ValueError:
            parts = None
        if isinstance(parts, list) and any(isinstance(part, str) for part in parts):  # [1, 2] is an interval
            answer = parts
    if isinstance(answer, list | tuple):
        return ", ".join(str(part) for part in answer)
    return None if answer is None else str(answer)


def equal_at_sight(answer: str, response: str) -> bool | None:
    """The verdict where no mathematics is needed (nothing given, the same text, two plain integers), else None."""
    answer, response = answer.strip(), response.strip().removesuffix(".")
    if not response:
        return False
    if response == answer:
        return True
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(response):
        return int(answer) == int(response)
    return None


# A pool of processes that compare mathematical answers, so that a pathological one does not block the others.
#
# Processes start when there is work for them and end when their input closes, also when this process is killed. The
# event loop only ever waits for a line of text.

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
            kill_group(worker.pid)
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
