"""A process that compares mathematical answers with math-verify. Started by `math_pool.py`; one JSON line a question.

Time is counted in CPU seconds of this process, so a busy machine never turns a right answer into a wrong one: an
interval timer interrupts Python code at the limit, and the kernel ends the process one second later where a single
operation in C cannot be interrupted. Memory is limited too (`9^(9^9)` is a short answer).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from types import FrameType

AGAIN = "--again"
KEPT_MEMORY = 256 << 20  # bytes in use beyond which a worker starts over; a fresh one has about 60 MiB
MEMORY_LIMIT = 1 << 30  # bytes of address space; sympy and math-verify take a quarter of it


class _OutOfTime(BaseException):
    """Not an Exception: math-verify catches those on its way to trying something else."""


def main() -> None:
    from math_verify import parse, verify

    def equal(answer: str, response: str) -> bool:
        expected = parse(f"\\boxed{{{answer}}}", parsing_timeout=None, raise_on_error=False)
        given = parse(f"\\boxed{{{response}}}", parsing_timeout=None, raise_on_error=False)
        return bool(verify(expected, given, timeout_seconds=None, raise_on_error=False))

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MEMORY_LIMIT)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes our input
    signal.signal(signal.SIGPROF, _out_of_time)
    if AGAIN not in sys.argv:
        os.nice(5)  # these take all cores there are; the process that waits for them and serves others goes first
        print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        answer, response, seconds = json.loads(line)
        _arm(seconds)
        try:
            verdict: bool | str = equal(answer, response)
        except (_OutOfTime, MemoryError, RecursionError):
            verdict = "undecided"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)
        if _resident() > KEPT_MEMORY:
            _start_over()


def _resident() -> int:
    """Bytes of memory in use; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def _start_over() -> None:
    """Exec a fresh interpreter in this process: memory of a pathological answer is never freed otherwise. The next
    question waits in the pipe meanwhile."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
    os.execv(sys.executable, [sys.executable, "-m", "whet.rubrics.math_worker", AGAIN])


def _arm(seconds: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 2, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _out_of_time(signum: int, frame: FrameType | None) -> None:
    raise _OutOfTime


if __name__ == "__main__":
    main()
