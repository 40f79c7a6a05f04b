"""`search`: `gepa.optimize` with our adapter and criterion, until the budget is spent; `confirm`: the final comparison.

The library samples minibatches, keeps the Pareto frontier and calls the parent selector. `acceptance.py` decides which
proposals are accepted, and `history.py` keeps every candidate; nothing is read from what the library returns. The whole
search is a function of the seed, the rewards and the replies of the reflection model. A resume repeats the search, with
calls and replies read from the logs.

Left out: the library's checkpoints and trackers, and its merges, to which no criterion applies.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from whet.errors import GepaError, MissingExtraError
from whet.evals.analysis.compare import paired_difference
from whet.gepa.config import GepaConfig
from whet.gepa.reflection.rollout_records import make_records
from whet.gepa.search.acceptance import Criterion, gate, gate_chance, race_order
from whet.gepa.search.history import History, rewards
from whet.gepa.types import (
    BudgetSpent,
    Candidate,
    Confirmation,
    Reflect,
    Rollouts,
    Scored,
    SearchExample,
    SearchObserver,
    SearchResult,
    candidate_id,
)

if TYPE_CHECKING:
    from gepa.core.state import GEPAState
    from gepa.proposer.base import CandidateProposal
    from gepa.strategies.acceptance import StrictImprovementAcceptance

    from whet.gepa.search.adapter import Adapter

logger = logging.getLogger(__name__)


def search(
    config: GepaConfig,
    seed: Candidate,
    train: Sequence[SearchExample],
    val: Sequence[SearchExample],
    rollouts: Rollouts,
    reflect: Reflect,
    observer: SearchObserver,
) -> SearchResult:
    """The best candidate by its mean over all of val, and how every other came about. Blocking.

    Raises `GepaError` where the calls do not suffice for the seed on val, and whatever `reflect` raises.
    """
    try:
        from gepa.api import optimize
        from gepa.strategies.acceptance import StrictImprovementAcceptance
    except ImportError as error:
        raise MissingExtraError("whet gepa", "gepa") from error
    from whet.gepa.search.adapter import Adapter

    paired = config.gepa.acceptance == "paired"
    selection = config.gepa.candidate_selection or ("likely_best" if paired else "pareto")
    history = History(observer)
    adapter = Adapter(
        history,
        rollouts,
        reflect,
        lambda scored, component: make_records(scored, component, config.state_columns),
        pass_over_settled=paired,
    )
    criterion = Paired(config, val, history, adapter) if paired else Library(StrictImprovementAcceptance(), history)
    ending = StopCondition(config, len(val), history, rollouts, adapter)
    try:
        optimize(
            seed_candidate=dict(seed),
            trainset=list(train),
            valset=list(val),
            adapter=cast(Any, adapter),
            candidate_selection_strategy=LikelyBest(config.search_seed) if selection == "likely_best" else selection,
            module_selector=config.gepa.component_selection,
            skip_perfect_score=config.perfect_score is not None,
            perfect_score=config.perfect_score,  # type: ignore[arg-type]  # read only where the line above allows it
            reflection_minibatch_size=config.minibatch_size,
            acceptance_criterion=criterion,
            stop_callbacks=[ending],
            callbacks=[cast(Any, ending)],
            logger=ToLog(),
            track_best_outputs=False,
            seed=config.search_seed,
        )
    except BudgetSpent as error:
        if not history.records:
            raise GepaError(
                f"{error}: too little for the first prompt on validation. Raise -B or --max-cost."
            ) from error
        ending.reason = "the budget is spent"
        if history.open is not None:
            history.decide("rejected", "the budget ended before it could be judged")
    return SearchResult(history.best, history.records, ending.reason)


NOTHING_NEW = 10
"""Reflections in a row without a text worth a call, after which no more is expected."""


@dataclass(eq=False)
class StopCondition:
    """When the search ends, and why. It also receives the start of each iteration."""

    config: GepaConfig
    num_val: int
    history: History
    rollouts: Rollouts
    adapter: Adapter
    reason: str = ""

    def __call__(self, gepa_state: GEPAState[Any, Any]) -> bool:
        if self.adapter.failure is not None:
            raise self.adapter.failure
        self.reason = self._why() or ""
        return bool(self.reason)

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        self.history.iteration = event["iteration"]

    def _why(self) -> str | None:
        best, perfect_score = self.history.best, self.config.perfect_score
        paired = self.config.gepa.acceptance == "paired"
        needed = 2 * self.config.minibatch_size + self.num_val
        # The library's own search continues after a perfect proposal, so with its criterion this one does too.
        perfect = perfect_score is not None and all(reward >= perfect_score for reward in best.val_rewards.values())
        if perfect and (paired or best.number == 0):
            which = "the seed prompt" if best.number == 0 else f"candidate {best.number}"
            return f"{which} is perfect on every validation example"
        if paired and self.adapter.nothing_new >= NOTHING_NEW:
            return f"the reflection model has had nothing new to propose {NOTHING_NEW} times in a row"
        if self.rollouts.left < needed:
            return f"the budget is spent: {self.rollouts.left} calls are left, and a proposal may take {needed}"
        return None


class LikelyBest:
    """Parent selector: draws each candidate as often as it could be the best one.

    The validation examples are resampled with replacement, and the candidate with the highest mean on them becomes the
    parent (Thompson sampling by the bootstrap). A candidate that is clearly ahead is almost always the parent; of
    several close ones each is drawn about equally often.

    The library's selector counts who has the highest reward on which example. With one noisy reward for each that is
    mostly luck, and candidates that were improved long ago stay parents.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"{seed}/parents")

    def select_candidate_idx(self, state: GEPAState[Any, Any]) -> int:
        """Of equal means the later candidate's: it was found to be better than its parent."""
        rewards = state.prog_candidate_val_subscores
        drawn = self._draw.choices(sorted(rewards[0]), k=len(rewards[0]))
        means = [sum(of[example] for example in drawn) for of in rewards]
        return max(range(len(means)), key=lambda candidate: (means[candidate], candidate))


@dataclass(eq=False)
class Paired:
    """Our criterion: the gate, then the race on val against the parent's rewards there, then the test."""

    config: GepaConfig
    val: Sequence[SearchExample]
    history: History
    adapter: Adapter

    def should_accept(self, proposal: CandidateProposal[Any], state: GEPAState[Any, Any]) -> bool:
        parent, candidate = take_minibatch(self.history, proposal)
        if not gate(parent, candidate):
            self.history.decide("rejected", not_better(parent, candidate))
            return False
        chance = gate_chance(parent, candidate, self.config.perfect_score)
        accepted, reason = self._race(state.program_candidates[proposal.parent_program_ids[0]], chance)
        self.history.decide("accepted" if accepted else "rejected", reason)
        return accepted

    def _race(self, parent: Candidate, chance: float) -> tuple[bool, str]:
        """Whether the open candidate is better than its parent, and how that is known."""
        record = self.history.open
        assert record is not None
        known = self.history.accepted(parent).val_rewards
        order = race_order(len(self.val), self.config.search_seed, record.number)

        def compare_on(begin: int, end: int) -> list[float]:
            examples = [self.val[index] for index in order[begin:end]]
            new = rewards(self.adapter.score(record.texts, examples, "race"))
            record.val_rewards |= new
            return [new[example.key] - known[example.key] for example in examples]

        result = Criterion().judge(len(order), chance, compare_on)
        record.p_value = result.p_value
        difference = f"{fmean(result.differences):+.3f} against its parent"
        if result.p_value is None:
            return False, f"left the race after {len(result.differences)} of {len(order)} examples: {difference}"
        p_value = f"p = {result.p_value:.3f}" if result.p_value >= 0.001 else "p < 0.001"
        return result.accepted, f"{difference} on validation, {p_value}"


@dataclass(eq=False)
class Library:
    """The library's criterion: a higher sum on the minibatch."""

    criterion: StrictImprovementAcceptance
    history: History

    def should_accept(self, proposal: CandidateProposal[Any], state: GEPAState[Any, Any]) -> bool:
        parent, candidate = take_minibatch(self.history, proposal)
        if self.criterion.should_accept(proposal, state):
            return True
        self.history.decide("rejected", not_better(parent, candidate))
        return False


class ToLog:
    """Logs the library's lines at debug level."""

    def log(self, message: str) -> None:
        logger.debug(message)


def take_minibatch(history: History, proposal: CandidateProposal[Any]) -> tuple[list[float], list[float]]:
    """Rewards of the parent and of the open candidate on the minibatch, saved in its record."""
    parent, candidate = list(proposal.subsample_scores_before or ()), list(proposal.subsample_scores_after or ())
    assert history.open is not None
    history.open.minibatch = {"parent": parent, "candidate": candidate}
    return parent, candidate


def not_better(parent: Sequence[float], candidate: Sequence[float]) -> str:
    return f"not better on its minibatch: {fmean(candidate):.3g} against its parent's {fmean(parent):.3g}"


def confirm(seed: Candidate, best: Candidate, held_out: Sequence[SearchExample], rollouts: Rollouts) -> Confirmation:
    """Compare the winner with the seed on examples that no part of the search has seen.

    The winner was chosen for its validation rewards, so these overestimate it. Here both prompts are called on the same
    held-out examples, and the mean difference gets a 95 % interval: over examples, by Student's t of the paired
    differences. Measured on rewards of 0 and 1 (`benchmarks/prompts.py`): the interval covers the true difference in 94
    to 96 of 100 comparisons of 50 or 100 pairs, in 91 to 96 of 20 pairs; of equal prompts, 1.9 to 2.6 of 100 are
    reported as different. With few pairs a bootstrap over examples does worse.

    Blocking. Raises `BudgetSpent` where the calls are not reserved. There is nothing to confirm where the seed won.
    """
    assert candidate_id(seed) != candidate_id(best)
    assert len(held_out) >= 2
    before = rollouts.score(seed, held_out, "confirmation")
    after = rollouts.score(best, held_out, "confirmation")
    return compare(before, after)


def compare(before: Sequence[Scored], after: Sequence[Scored]) -> Confirmation:
    """The comparison of the seed's calls with the winner's on the same examples. Pure."""
    first, second = rewards(before), rewards(after)
    assert first.keys() == second.keys()
    difference = paired_difference([second[example] - first[example] for example in first])
    assert difference.low is not None
    assert difference.high is not None
    return Confirmation(
        pairs=len(first),
        seed_mean=fmean(first.values()),
        best_mean=fmean(second.values()),
        difference=difference.mean,
        low=difference.low,
        high=difference.high,
        real=difference.low > 0,
    )
