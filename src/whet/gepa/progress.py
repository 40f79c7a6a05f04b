"""The data that the view shows, collected from the observer's events. Knows no terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from whet.gepa.records.candidates import by_id
from whet.gepa.types import (
    CandidateRecord,
    Confirmation,
    Phase,
    Scored,
    SearchObserver,
    SearchPlan,
    best_of,
    candidate_id,
    seed_of,
)

RATE_CALLS = 60
"""How many of the latest calls the speed is of."""
RATE_SECONDS = 1.0
"""Seconds below which no speed is computed."""


@dataclass(frozen=True, slots=True)
class CallTally:
    """Calls, and what they earned."""

    calls: int = 0
    reward: float = 0.0  # sum

    def plus(self, scored: Scored) -> CallTally:
        return CallTally(self.calls + 1, self.reward + scored.reward)

    @property
    def mean(self) -> float | None:
        return self.reward / self.calls if self.calls else None


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """What the search is doing."""

    name: Phase
    detail: str
    total: int  # calls requested in it; 0 for reflection
    tallies: dict[str, CallTally] = field(default_factory=dict)  # by candidate id: its calls since the phase began

    @property
    def done(self) -> int:
        return sum(tally.calls for tally in self.tallies.values())


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that is not decided on yet."""

    number: int
    id: str
    parent: str  # id
    tally: CallTally = CallTally()


class SearchProgress(SearchObserver):
    """An observer that only collects. `clock` is in seconds and only ever compared with itself.

    A call costs a few microseconds, and memory does not grow with their number.
    """

    def __init__(self, title: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.title, self._clock = title, clock
        self._started = clock()
        self.plan: SearchPlan | None = None
        self.spent = self.errors = 0
        self.replayed = 0  # of the calls, those that the log of an earlier process had
        self.cost: float | None = None
        self.current: PhaseProgress | None = None
        self.records: list[CandidateRecord] = []  # every candidate that was decided on, by number
        self.by_id: dict[str, CandidateRecord] = {}
        self.proposal: Proposal | None = None
        self.confirmation: Confirmation | None = None
        self._recent: deque[float] = deque(maxlen=RATE_CALLS)
        self._fresh = False  # whether anything happened that no log knew

    @property
    def replaying(self) -> bool:
        """Whether everything so far came from the log."""
        return self.replayed > 0 and not self._fresh

    @property
    def max_calls(self) -> int:
        """0 while it is unknown."""
        return self.plan.max_calls if self.plan else 0

    @property
    def elapsed(self) -> float:
        """Seconds."""
        return self._clock() - self._started

    @property
    def rate(self) -> float | None:
        """Calls a second, over the latest calls up to this moment, so that it falls while nothing comes."""
        if len(self._recent) < 2:
            return None
        seconds = self._clock() - self._recent[0]
        return (len(self._recent) - 1) / seconds if seconds >= RATE_SECONDS else None

    @property
    def remaining(self) -> float | None:
        """Seconds, were the rest of the budget spent at that speed."""
        rate = self.rate
        return max(0, self.max_calls - self.spent) / rate if rate else None

    @property
    def seed(self) -> CandidateRecord | None:
        return seed_of(self.records)

    @property
    def best(self) -> CandidateRecord | None:
        return best_of(self.records)

    @property
    def proposals(self) -> int:
        """Those that were decided on."""
        return self.count("accepted") + self.count("rejected")

    def count(self, verdict: str) -> int:
        return sum(record.verdict == verdict for record in self.records)

    def planned(self, plan: SearchPlan) -> None:
        self.plan = plan

    def phase(self, phase: Phase, detail: str, total: int) -> None:
        self.current = PhaseProgress(phase, detail, total)
        if phase == "reflection":
            self.proposal = None

    def finished(self, scored: Scored, spent: int, cost: float | None, replayed: bool = False) -> None:
        self.spent = max(self.spent, spent)
        self.cost = self.cost if cost is None else cost
        self.errors += scored.error is not None
        candidate = scored.call.candidate
        if self.current is not None:
            tallies = self.current.tallies
            tallies[candidate] = tallies.get(candidate, CallTally()).plus(scored)
        if self.proposal is not None and candidate == self.proposal.id:
            self.proposal = replace(self.proposal, tally=self.proposal.tally.plus(scored))
        if replayed:
            self.replayed += 1
            return
        self._fresh = True
        self._recent.append(self._clock())

    def proposed(self, number: int, parent: str, texts: Mapping[str, str], changed: Sequence[str]) -> None:
        self.proposal = Proposal(number, candidate_id(texts), parent)

    def decided(self, record: CandidateRecord) -> None:
        others = [one for one in self.records if one.number != record.number]
        self.records = sorted([*others, record], key=lambda one: one.number)
        self.by_id = by_id(self.records)
        if self.proposal is not None and self.proposal.number <= record.number:
            self.proposal = None

    def confirmed(self, confirmation: Confirmation) -> None:
        self.confirmation = confirmation
