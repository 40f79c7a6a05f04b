"""The types of prompt optimisation, shared by every file of this room.

candidate   texts by component name: {"system_prompt": "...", "tool:search": "..."}
example     one row of a dataset of an environment, in one of three splits: train, val, held_out
call        one rollout of one candidate on one example: what the budget counts
sample      the number of a call among those of this candidate on this example: 0, 1, 2, ...
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from whet.display.live import RunObserver, forwards
from whet.records.lock import EndState

Candidate = Mapping[str, str]
Split = Literal["train", "val", "held_out"]
Phase = Literal["baseline", "minibatch", "reflection", "race", "confirmation"]


def candidate_id(candidate: Candidate) -> str:
    """12 hexadecimal digits that depend on the texts alone."""
    texts = json.dumps(dict(candidate), sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class SearchExample:
    """A row by its position. `environment` is the label of its `[[env]]`, `number` the index in the split."""

    environment: str
    split: Split
    number: int
    example_id: Any = field(compare=False)
    row: Mapping[str, Any] = field(compare=False, repr=False, hash=False)

    @property
    def key(self) -> str:
        """`val/reverse-text/12`: names it in files."""
        return f"{self.split}/{self.environment}/{self.number}"


@dataclass(frozen=True, slots=True)
class RolloutCall:
    """The identity of a rollout. Calls with equal keys are the same call, which is never paid for twice."""

    candidate: str  # candidate_id
    example: str  # Example.key
    sample: int

    @property
    def key(self) -> str:
        return f"{self.candidate}/{self.example}/{self.sample}"


@dataclass(frozen=True, slots=True)
class Scored:
    """A finished call. An errored rollout has `error` set and counts as reward 0."""

    call: RolloutCall
    reward: float
    error: str | None
    row: Mapping[str, Any]  # a result row: prompt, completion, metrics, tool calls, state columns, usage, cost


class BudgetSpent(Exception):
    """The requested calls do not fit into what is left; none of them was begun."""


class Rollouts(Protocol):
    """Makes calls. Blocking; called from the search's thread."""

    def score(self, candidate: Candidate, examples: Sequence[SearchExample], phase: Phase) -> list[Scored]:
        """One call of `candidate` on each example, all at once as far as concurrency allows; in the examples' order.

        An example that the candidate has been called on before gets another sample. A call that the log of an earlier
        process holds is answered from it and counts as it did then. Raises `BudgetSpent` before any call is begun where
        they do not all fit.
        """

    @property
    def left(self) -> int:
        """Calls that may still be begun in the search."""


Reflect = Callable[[Candidate, Mapping[str, Sequence[Mapping[str, Any]]], Sequence[str]], dict[str, str]]
"""Proposes new texts for (some of) the components named last; blocking, called from the thread that searches.

Its second argument is what `make_records` made of scored calls, by component. {} where the model's answer was not
usable. Raises `GepaError` once that has happened too often in a row.
"""
Verdict = Literal["seed", "accepted", "rejected"]


@dataclass(slots=True)
class CandidateRecord:
    """What is known of one candidate: a line of `candidates.jsonl`."""

    id: str
    number: int  # in the order of proposal; the seed is 0
    texts: dict[str, str]
    parents: list[str]  # ids
    changed: list[str]  # components
    verdict: Verdict
    reason: str  # in words
    iteration: int
    calls_before: int  # calls begun when it was proposed
    calls_after: int  # ... and when it was decided on
    minibatch: dict[str, list[float]] = field(default_factory=dict)  # {"parent": rewards, "candidate": rewards}
    val_rewards: dict[str, float] = field(default_factory=dict)  # by example key; fewer than all where the race ended
    p_value: float | None = None  # of the paired test against its parent; None where none was made
    val_mean: float | None = None  # None unless all of val was scored


def seed_of(records: Iterable[CandidateRecord]) -> CandidateRecord | None:
    return next((one for one in records if one.verdict == "seed"), None)


def best_of(records: Iterable[CandidateRecord]) -> CandidateRecord | None:
    """The highest mean on validation of the seed and what was accepted; the earliest of several."""
    pool = [one for one in records if one.verdict != "rejected" and one.val_mean is not None]
    return max(pool, key=lambda one: (one.val_mean, -one.number), default=None)


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What the budget affords; printed before anything is paid for."""

    max_calls: int
    reserved: int  # for the confirmation
    baseline: int  # the seed on val
    per_rejected: int  # calls of a proposal that is rejected on its minibatch
    per_accepted: int  # calls of a proposal that is validated whole
    fewest_proposals: int  # if every one were accepted
    most_proposals: int  # if every one were rejected on its minibatch
    cost_per_call: float | None  # None where no price is known
    num_train: int
    num_val: int
    num_held_out: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The winner against the seed on examples that the search has never seen."""

    pairs: int
    seed_mean: float
    best_mean: float
    difference: float
    low: float  # 95 % confidence interval of the difference
    high: float
    real: bool  # whether the interval is above 0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search has found."""

    best: CandidateRecord
    candidates: list[CandidateRecord]
    ended: str  # why: "the budget is spent", "the seed prompt is perfect", ...


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of `whet gepa run`."""

    state: EndState | Literal["planned"]
    message: str  # why it ended
    directory: Path
    spent: int = 0
    max_calls: int = 0
    cost: float | None = None
    candidates: int = 0  # proposals that were decided on
    accepted: int = 0
    seed_mean: float | None = None  # on validation
    best: CandidateRecord | None = None
    confirmation: Confirmation | None = None
    evaluate: list[str] = field(default_factory=list)  # a command for each environment
    report: Path | None = None
    resume: str | None = None
    exit_code: int = 0
    plan: list[str] = field(default_factory=list)  # of a dry run, in words


class SearchObserver(RunObserver):
    """Receives the events of a search as they happen, in the event loop's thread only."""

    def planned(self, plan: SearchPlan) -> None:
        """Before anything is paid for."""

    def phase(self, phase: Phase, detail: str, total: int) -> None:
        """A phase begins; `total` calls are requested in it (0 for reflection)."""

    def finished(self, scored: Scored, spent: int, cost: float | None, replayed: bool = False) -> None:
        """A call has ended; `spent` calls count against the budget by now, and all of them together cost `cost`.

        `replayed`: it was answered from the log of an earlier process, so no time was spent on it now.
        """

    def decided(self, record: CandidateRecord) -> None:
        """A candidate (the seed included) was accepted or rejected."""

    def proposed(self, number: int, parent: str, texts: Mapping[str, str], changed: Sequence[str]) -> None:
        """The reflection model has written a candidate; `parent` is the id of the one that it changes."""

    def confirmed(self, confirmation: Confirmation) -> None:
        """The winner was compared with the seed on held-out examples."""


@forwards
class Forwarder(SearchObserver):
    """Passes every event on through one method, `send`."""

    def send(self, event: str, *args: Any) -> None:
        """An event by the name of its method, and what it carries."""
        raise NotImplementedError
