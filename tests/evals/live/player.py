"""A session of evaluations that does what it is told, one line of a named pipe at a time: for tests of the live view.

    start 2 4 3          two evaluations of four tasks with three rollouts each
    rollout 0 1 0.5      evaluation 0, task 1, reward 0.5 (or the name of an error)
    note TEXT, print TEXT, log TEXT
    finish 0
    close, crash

Run as a program in a terminal; `signal.pause` would do as well as reading a pipe, but would not say what comes next.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any

from whet.evals.analysis.summary import SummaryBuilder
from whet.evals.live.view import open_view
from whet.evals.observer import EvalObserver, PlannedEval
from whet.types import RolloutOutput

ENVIRONMENTS = ("arithmetic", "reverse-text", "calculator", "wordle")


def plan(environment: str = "arithmetic", examples: int = 4, rollouts: int = 3, **more: Any) -> PlannedEval:
    return PlannedEval(environment, "whet/tiny", "temperature 1", examples, rollouts, **more)


def row(task: int, outcome: float | str, seconds: float = 1.0, said: str = "It is 4.") -> RolloutOutput:
    """A row as it stands in results: scored, or failed with the error named."""
    error = {"error": outcome, "error_chain_repr": f"{outcome}('no answer')", "error_chain_str": outcome}
    failed = isinstance(outcome, str)
    return RolloutOutput(
        example_id=task,
        prompt=[{"role": "user", "content": f"What is {task} + 2?"}],
        completion=[{"role": "assistant", "content": said}],
        reward=None if failed else outcome,
        metrics={} if failed else {"exact_match": float(outcome == 1.0)},
        timing={"generation": {"duration": seconds}},
        is_truncated=False,
        error=error if failed else None,
        token_usage={"input_tokens": 20.0, "output_tokens": 5.0},
    )


def do(view: EvalObserver, rows: dict[int, list[RolloutOutput]], word: str, rest: list[str]) -> None:
    match word:
        case "start":
            number, examples, rollouts = map(int, rest)
            view.start([plan(name, examples, rollouts) for name in ENVIRONMENTS[:number]])
        case "rollout":
            which, task, outcome = int(rest[0]), int(rest[1]), rest[2]
            made = row(task, outcome if outcome.isidentifier() else float(outcome), said=" ".join(rest[3:]) or "4")
            rows.setdefault(which, []).append(made)
            view.rollout(which, made)
        case "note":
            view.note(" ".join(rest))
        case "print":
            print(*rest)
        case "log":
            logging.getLogger("whet.player").warning(" ".join(rest))
        case "finish":
            which = int(rest[0])
            names = {"environment": ENVIRONMENTS[which], "model": "whet/tiny", "sampling": "temperature 1"}
            builder = SummaryBuilder(**names, rollouts_per_example=3, pass_threshold=0.5)
            done = builder.summarize(rows[which], seconds=2.0)
            view.finish(which, done)
        case "crash":
            raise RuntimeError("a mistake in the session")


def main(pipe: str) -> None:
    logging.basicConfig(format="%(levelname)s %(message)s")
    view = open_view()
    rows: dict[int, list[RolloutOutput]] = {}
    with open(pipe, encoding="utf-8") as commands:
        for line in commands:
            word, *rest = line.split()
            if word == "close":
                break
            do(view, rows, word, rest)
    view.close()
    print("the summary")


def wake_reads() -> None:
    """A signal that arrives just before a read begins has its handler run when the next one interrupts the read."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what `nohup` has the tests ignore
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)


if __name__ == "__main__":
    wake_reads()
    try:
        main(sys.argv[1])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
