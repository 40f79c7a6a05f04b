"""A search that does what it is told, one line of a named pipe at a time: for tests of its live view.

    plan 100                         a budget of so many calls
    phase race 12 1                  a phase of twelve calls of candidate 1 (or any other detail)
    call 1 3 0.5                     candidate 1, validation example 3, reward 0.5 (or the name of an error)
    proposed 1 0 Think first.        candidate 1, from candidate 0
    decided 1 accepted 0.75 REASON   with its mean on validation (- for none)
    confirmed 0.5 0.7 0.05 0.35      the seed's mean, the winner's, the interval of the difference
    note TEXT, print TEXT
    close, crash

Run as a program in a terminal. The texts of a candidate are one system prompt; a `|` begins another line of it.
"""

from __future__ import annotations

import signal
import sys
from typing import Any, Literal, cast

from whet.gepa.types import (
    CandidateRecord,
    Confirmation,
    Phase,
    RolloutCall,
    Scored,
    SearchObserver,
    SearchPlan,
    candidate_id,
)
from whet.gepa.view import open_view

SEED = "You reverse texts.\nAnswer with the text reversed."


def plan(max_calls: int = 100, **more: Any) -> SearchPlan:
    known: dict[str, Any] = {
        "max_calls": max_calls,
        "reserved": 20,
        "baseline": 10,
        "per_rejected": 6,
        "per_accepted": 16,
        "fewest_proposals": 4,
        "most_proposals": 11,
        "cost_per_call": None,
        "num_train": 10,
        "num_val": 10,
        "num_held_out": 10,
    }
    return SearchPlan(**{**known, **more})


class Told:
    """A search as a test tells it: what an observer hears, with everything filled in that a test leaves out."""

    def __init__(self, observer: SearchObserver) -> None:
        self.observer = observer
        self.texts = {0: {"system_prompt": SEED}}
        self.parents: dict[int, int] = {}
        self.spent = 0

    def call(self, candidate: int, example: int, outcome: float | str, *, replayed: bool = False) -> None:
        self.spent += 1
        failed = isinstance(outcome, str)
        call = RolloutCall(candidate_id(self.texts[candidate]), f"val/reverse-text/{example}", 0)
        scored = Scored(call, 0.0 if failed else cast(float, outcome), cast(str, outcome) if failed else None, {})
        self.observer.finished(scored, self.spent, None, replayed)

    def propose(self, number: int, parent: int, text: str) -> None:
        self.texts[number], self.parents[number] = {"system_prompt": text}, parent
        self.observer.proposed(number, candidate_id(self.texts[parent]), self.texts[number], ["system_prompt"])

    def decide(
        self, number: int, verdict: Literal["seed", "accepted", "rejected"], mean: float | None, reason: str = ""
    ) -> None:
        parents = [candidate_id(self.texts[self.parents[number]])] if number in self.parents else []
        self.observer.decided(
            CandidateRecord(
                id=candidate_id(self.texts[number]),
                number=number,
                texts=dict(self.texts[number]),
                parents=parents,
                changed=["system_prompt"] if parents else [],
                verdict=verdict,
                reason=reason,
                iteration=number,
                calls_before=self.spent,
                calls_after=self.spent,
                val_mean=mean,
            )
        )


def do(told: Told, word: str, rest: list[str]) -> None:
    observer = told.observer
    match word:
        case "plan":
            observer.planned(plan(int(rest[0])))
        case "phase":
            detail = " ".join(rest[2:])
            told_of = int(detail) if detail.isdecimal() else None
            detail = detail if told_of is None else candidate_id(told.texts[told_of])
            observer.phase(cast(Phase, rest[0]), detail, int(rest[1]))
        case "call":
            outcome = rest[2]
            told.call(int(rest[0]), int(rest[1]), outcome if outcome.isidentifier() else float(outcome))
        case "proposed":
            told.propose(int(rest[0]), int(rest[1]), " ".join(rest[2:]).replace("|", "\n"))
        case "decided":
            mean = None if rest[2] == "-" else float(rest[2])
            told.decide(int(rest[0]), cast(Any, rest[1]), mean, " ".join(rest[3:]))
        case "confirmed":
            seed, best, low, high = map(float, rest)
            observer.confirmed(Confirmation(10, seed, best, best - seed, low, high, low > 0))
        case "note":
            observer.note(" ".join(rest))
        case "print":
            print(*rest)
        case "crash":
            raise RuntimeError("a mistake in the search")


def main(pipe: str) -> None:
    observer = open_view("reverse-text with whet/tiny")
    told = Told(observer)
    with open(pipe, encoding="utf-8") as commands:
        for line in commands:
            word, *rest = line.split()
            if word == "close":
                break
            do(told, word, rest)
    observer.close()
    print("the summary")


def wake_reads() -> None:
    """A signal that arrives just before a read begins has its handler run when the next one interrupts the read."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)


if __name__ == "__main__":
    wake_reads()
    try:
        main(sys.argv[1])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
