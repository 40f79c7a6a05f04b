"""A process that compares mathematical answers with math-verify. Started by `math_rubric.py`; one JSON line a question.

It imports math-verify once and forks a process that compares, and another one as soon as that has ended: nothing of an
answer remains and a new process costs milliseconds. Time is counted in CPU seconds of the comparing process; at the
limit the kernel ends it, also within a single operation in C. Memory is limited too (`9^(9^9)` is a short answer).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

KEPT_MEMORY = 256 << 20  # bytes in use beyond which the comparing process is replaced; a fresh one has about 60 MiB
MEMORY_LIMIT = 1 << 30  # bytes of address space; sympy and math-verify take a quarter of it
_REPLACE = 3  # exit code of a comparing process that has answered and asks to be replaced
_WARM = (
    (r"\frac{x_{12}}{2}+1.5", r"(x_1+1)(y-2)^2"),
    (r"\sqrt{3}+2^{10}", r"2\pi\times10^{-3}"),
    (r"\{1, 2\}", "(1,3)"),
    ("[1,2)", r"1\le x<2"),
    ("y=2x", r"2\sin x"),
)


def main() -> None:
    from whet.rubrics import math_equality

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MEMORY_LIMIT)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    for number in (signal.SIGINT, signal.SIGHUP):  # the parent handles both and closes our input
        signal.signal(number, signal.SIG_IGN)
    os.nice(5)  # these take all cores there are; the process that waits for them and serves others goes first
    for pair in _WARM:  # fills the caches of grammar and solver, which all forks then have
        one, other = (math_equality.read(text, parsing_timeout=None) for text in pair)
        math_equality.same(one, other, timeout_seconds=None)
    print(json.dumps("ready"), flush=True)
    while (status := _in_child()) != 0:
        if status == -signal.SIGPROF:
            print(json.dumps("undecided"), flush=True)
        elif status != _REPLACE:
            os._exit(1)


def _in_child() -> int:
    """Compare in a fork of this process; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(_compare())
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _compare() -> int:
    """Answer questions until the input ends (0) or an answer leaves too much behind (`_REPLACE`)."""
    from whet.rubrics import math_equality

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin:
        answer, response, seconds, response_seconds = json.loads(line)
        try:
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, max(0.01, seconds))
            expected = math_equality.read(answer, parsing_timeout=None)
            # Only the response is hostile. What is long to read in the expected answer may be so in a right response.
            needed = time.process_time() - start
            signal.setitimer(signal.ITIMER_PROF, max(0.01, min(seconds - needed, response_seconds + 4 * needed)))
            given = math_equality.read(response, parsing_timeout=None)
            verdict: bool | str = math_equality.same(expected, given, timeout_seconds=None)
        except (MemoryError, RecursionError):
            verdict = "undecided"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)
        if verdict == "undecided" or _resident() > KEPT_MEMORY:
            return _REPLACE
    return 0


def _resident() -> int:
    """Bytes of memory in use; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
