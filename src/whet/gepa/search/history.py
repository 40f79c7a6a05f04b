"""`History`: every candidate of a search in the order of proposal, and which of them is best. It notifies the observer.

Nothing is read back from the library's state. It is the same in every process that repeats the search, so it counts
requested calls, and a call that a kill made necessary twice counts once.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from whet.gepa.types import Candidate, CandidateRecord, Scored, SearchObserver, best_of, candidate_id


class History:
    """The candidates of one search. At most one of them is undecided: `open`."""

    def __init__(self, observer: SearchObserver) -> None:
        self.records: list[CandidateRecord] = []
        self.open: CandidateRecord | None = None
        self.iteration = 0
        self.calls = 0
        self._observer = observer

    def begin(self, seed: Candidate, scored: Sequence[Scored]) -> None:
        """The seed, with its calls on all of val."""
        record = self._new(seed, [], [])
        record.verdict, record.reason = "seed", "where the search began"
        record.val_rewards = rewards(scored)
        self._decided(record)

    def propose(self, parent: CandidateRecord, texts: Candidate, changed: Sequence[str]) -> None:
        """A new candidate, undecided."""
        assert self.open is None
        self.open = self._new(texts, [parent.id], changed)
        self._observer.proposed(self.open.number, parent.id, self.open.texts, self.open.changed)

    def decide(self, verdict: Literal["accepted", "rejected"], reason: str) -> None:
        """What became of the open candidate."""
        assert self.open is not None
        record, self.open = self.open, None
        record.verdict, record.reason = verdict, reason
        self._decided(record)

    def accepted(self, candidate: Candidate) -> CandidateRecord:
        """The record of a candidate that others may be made from."""
        wanted = candidate_id(candidate)
        return next(one for one in self.records if one.id == wanted and one.verdict != "rejected")

    def settled(self, candidate: Candidate) -> bool:
        """Whether to score this candidate once more could teach nothing: it was accepted, or it lost on validation.

        One that only a minibatch spoke against may be tried again: a few noisy rewards do not settle much.
        """
        wanted = candidate_id(candidate)
        return any(one.id == wanted and one.val_rewards for one in self.records)

    @property
    def best(self) -> CandidateRecord:
        best = best_of(self.records)
        assert best is not None  # the seed is the first record
        return best

    def _new(self, texts: Candidate, parents: list[str], changed: Sequence[str]) -> CandidateRecord:
        return CandidateRecord(
            id=candidate_id(texts),
            number=len(self.records),
            texts=dict(texts),
            parents=parents,
            changed=list(changed),
            verdict="rejected",
            reason="undecided",
            iteration=self.iteration,
            calls_before=self.calls,
            calls_after=self.calls,
        )

    def _decided(self, record: CandidateRecord) -> None:
        record.calls_after = self.calls
        if record.verdict != "rejected":
            record.val_mean = statistics.fmean(record.val_rewards.values())
        self.records.append(record)
        self._observer.decided(record)


def rewards(scored: Sequence[Scored]) -> dict[str, float]:
    """Rewards by example key."""
    return {one.call.example: one.reward for one in scored}
