"""The data that the views show, collected from the observer's events.

progress = SearchProgress("reverse-text with whet/tiny")
progress.finished(scored, spent=12, cost=None)        # ... and every other call of an observer
progress.facts()                                      # a copy, to be drawn while more comes in
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from whet.gepa.records.candidates import by_id
from whet.gepa.types import (
    Candidate,
    CandidateRecord,
    Confirmation,
    Observer,
    Phase,
    Scored,
    SearchPlan,
    best_of,
    candidate_id,
    seed_of,
)

RATE_CALLS = 60
"""How many of the latest calls the speed is of."""
RATE_SECONDS = 1.0
"""Seconds below which no speed is computed."""
MOST_REASON = 200
"""Characters of a reason that are kept."""


@dataclass(frozen=True, slots=True)
class CallTally:
    """Calls, and what they earned."""

    calls: int = 0
    reward: float = 0.0  # sum
    errors: int = 0

    def plus(self, scored: Scored) -> CallTally:
        return CallTally(self.calls + 1, self.reward + scored.reward, self.errors + (scored.error is not None))

    @property
    def mean(self) -> float | None:
        return self.reward / self.calls if self.calls else None


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """What the search is doing."""

    name: Phase
    detail: str
    total: int  # calls requested in it; 0 for reflection
    tallies: Mapping[str, CallTally]  # by candidate id: its calls since the phase began

    @property
    def done(self) -> int:
        return sum(tally.calls for tally in self.tallies.values())


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that is not decided on yet."""

    number: int
    id: str
    parent: str  # id
    texts: Candidate
    changed: tuple[str, ...]
    tally: CallTally = CallTally()


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """A search at one moment."""

    title: str
    plan: SearchPlan | None
    spent: int
    replayed: int  # of the calls, those that the log of an earlier process had
    errors: int
    cost: float | None
    elapsed: float  # seconds
    rate: float | None  # calls a second, of late
    remaining: float | None  # seconds, were the rest of the budget spent at that speed
    phase: PhaseFacts | None
    records: tuple[CandidateRecord, ...]  # every candidate that was decided on, by number
    proposal: Proposal | None
    confirmation: Confirmation | None
    replaying: bool  # whether everything so far came from the log
    by_id: Mapping[str, CandidateRecord]

    @property
    def seed(self) -> CandidateRecord | None:
        return seed_of(self.records)

    @property
    def best(self) -> CandidateRecord | None:
        return best_of(self.records)

    def count(self, verdict: str) -> int:
        return sum(record.verdict == verdict for record in self.records)


class SearchProgress(Observer):
    """An observer that only collects. `clock` is in seconds and only ever compared with itself.

    A call costs a few microseconds, and memory does not grow with their number.
    """

    def __init__(self, title: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock = title, clock
        self._started = clock()
        self._plan: SearchPlan | None = None
        self._spent = self._replayed = self._errors = 0
        self._cost: float | None = None
        self._recent: deque[float] = deque(maxlen=RATE_CALLS)
        self._phase: PhaseFacts | None = None
        self._tallies: dict[str, CallTally] = {}
        self._records: dict[int, CandidateRecord] = {}
        self._proposal: Proposal | None = None
        self._confirmation: Confirmation | None = None
        self._fresh = False  # whether anything happened that no log knew

    @property
    def tenth(self) -> int:
        """How many tenths of the budget are spent."""
        return 10 * self._spent // self._plan.max_calls if self._plan else 0

    @property
    def replaying(self) -> bool:
        """Whether everything so far came from the log."""
        return self._replayed > 0 and not self._fresh

    def planned(self, plan: SearchPlan) -> None:
        self._plan = plan

    def phase(self, phase: Phase, detail: str, total: int) -> None:
        self._tallies = {}
        self._phase = PhaseFacts(phase, detail, total, {})
        if phase == "reflection":
            self._proposal = None

    def finished(self, scored: Scored, spent: int, cost: float | None, replayed: bool = False) -> None:
        self._spent = max(self._spent, spent)
        self._cost = self._cost if cost is None else cost
        self._errors += scored.error is not None
        candidate = scored.call.candidate
        self._tallies[candidate] = self._tallies.get(candidate, CallTally()).plus(scored)
        if self._proposal is not None and candidate == self._proposal.id:
            self._proposal = replace(self._proposal, tally=self._proposal.tally.plus(scored))
        if replayed:
            self._replayed += 1
            return
        self._fresh = True
        self._recent.append(self._clock())

    def proposed(self, number: int, parent: str, texts: Mapping[str, str], changed: Sequence[str]) -> None:
        self._proposal = Proposal(number, candidate_id(texts), parent, dict(texts), tuple(changed))

    def decided(self, record: CandidateRecord) -> None:
        self._records[record.number] = replace(record, reason=record.reason[:MOST_REASON])
        if self._proposal is not None and self._proposal.number <= record.number:
            self._proposal = None

    def confirmed(self, confirmation: Confirmation) -> None:
        self._confirmation = confirmation

    def facts(self) -> SearchFacts:
        """Everything a view needs, copied."""
        now = self._clock()
        rate = self._rate(now)
        left = max(0, self._plan.max_calls - self._spent) if self._plan else 0
        records = tuple(self._records[number] for number in sorted(self._records))
        return SearchFacts(
            title=self._title,
            plan=self._plan,
            spent=self._spent,
            replayed=self._replayed,
            errors=self._errors,
            cost=self._cost,
            elapsed=now - self._started,
            rate=rate,
            remaining=left / rate if rate else None,
            phase=replace(self._phase, tallies=dict(self._tallies)) if self._phase else None,
            records=records,
            proposal=self._proposal,
            confirmation=self._confirmation,
            replaying=self.replaying,
            by_id=by_id(records),
        )

    def _rate(self, now: float) -> float | None:
        """Over the latest calls up to this moment, so that it falls while nothing comes."""
        if len(self._recent) < 2:
            return None
        seconds = now - self._recent[0]
        return (len(self._recent) - 1) / seconds if seconds >= RATE_SECONDS else None
