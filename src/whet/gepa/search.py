"""`search`: `gepa.optimize` behind our adapter and with our criterion, until the budget or the prompts are exhausted.

The library samples minibatches, keeps the Pareto frontier and picks parents. Which proposals are believed is decided in
`acceptance.py`; what is known is kept in `history.py`, and nothing is read from what the library returns. All of it is
a function of the seed, the rewards and the answers of the reflection model: to resume is to search again, with a log
that answers.

What is left out: the library's checkpoints and trackers, and its merges, which no criterion is asked about.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from whet.errors import GepaError, MissingExtraError
from whet.gepa.acceptance import Criterion, gate, gate_chance, race_order
from whet.gepa.config import GepaConfig
from whet.gepa.history import History, rewards
from whet.gepa.parents import LikelyBest
from whet.gepa.rollout_records import make_records
from whet.gepa.types import BudgetSpent, Candidate, Example, Observer, Reflect, Rollouts, SearchResult

if TYPE_CHECKING:
    from gepa.core.state import GEPAState
    from gepa.proposer.base import CandidateProposal
    from gepa.strategies.acceptance import StrictImprovementAcceptance

    from whet.gepa.adapter import Adapter

logger = logging.getLogger(__name__)


def search(
    config: GepaConfig,
    seed: Candidate,
    train: Sequence[Example],
    val: Sequence[Example],
    rollouts: Rollouts,
    reflect: Reflect,
    observer: Observer,
) -> SearchResult:
    """The best candidate by its mean over all of val, and how every other came about. Blocking.

    Raises `GepaError` where the calls do not suffice for the seed on val, and whatever `reflect` raises.
    """
    try:
        from gepa.api import optimize
        from gepa.strategies.acceptance import StrictImprovementAcceptance
    except ImportError as error:
        raise MissingExtraError("whet gepa", "gepa") from error
    from whet.gepa.adapter import Adapter

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
    judge = Paired(config, val, history, adapter) if paired else Library(StrictImprovementAcceptance(), history)
    ending = Ending(config, len(val), history, rollouts, adapter)
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
            acceptance_criterion=judge,
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


class Ending:
    """When the search is over, and why. Also told of each iteration as it begins."""

    def __init__(
        self, config: GepaConfig, num_val: int, history: History, rollouts: Rollouts, adapter: Adapter
    ) -> None:
        self.reason = ""
        self._perfect = config.perfect_score
        self._paired = config.gepa.acceptance == "paired"
        self._needed = 2 * config.minibatch_size + num_val
        self._history = history
        self._rollouts = rollouts
        self._adapter = adapter

    def __call__(self, gepa_state: GEPAState[Any, Any]) -> bool:
        if self._adapter.failure is not None:
            raise self._adapter.failure
        self.reason = self._why() or ""
        return bool(self.reason)

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        self._history.iteration = event["iteration"]

    def _why(self) -> str | None:
        best = self._history.best
        # The library's own search goes on once a proposal is perfect, so with its criterion this one does too.
        perfect = self._perfect is not None and all(reward >= self._perfect for reward in best.val_rewards.values())
        if perfect and (self._paired or best.number == 0):
            which = "the seed prompt" if best.number == 0 else f"candidate {best.number}"
            return f"{which} is perfect on every validation example"
        if self._paired and self._adapter.nothing_new >= NOTHING_NEW:
            return f"the reflection model has had nothing new to propose {NOTHING_NEW} times in a row"
        if self._rollouts.left < self._needed:
            return f"the budget is spent: {self._rollouts.left} calls are left, and a proposal may take {self._needed}"
        return None


class Paired:
    """Our criterion: the gate, then the race on val against the parent's rewards there, then the test."""

    def __init__(self, config: GepaConfig, val: Sequence[Example], history: History, adapter: Adapter) -> None:
        self._criterion = Criterion()
        self._config = config
        self._val = val
        self._history = history
        self._adapter = adapter

    def should_accept(self, proposal: CandidateProposal[Any], state: GEPAState[Any, Any]) -> bool:
        parent, candidate = take_minibatch(self._history, proposal)
        if not gate(parent, candidate):
            self._history.decide("rejected", not_better(parent, candidate))
            return False
        chance = gate_chance(parent, candidate, self._config.perfect_score)
        accepted, reason = self._race(state.program_candidates[proposal.parent_program_ids[0]], chance)
        self._history.decide("accepted" if accepted else "rejected", reason)
        return accepted

    def _race(self, parent: Candidate, chance: float) -> tuple[bool, str]:
        """Whether the open candidate is better than its parent, and how that is known."""
        record = self._history.open
        assert record is not None
        known = self._history.accepted(parent).val_rewards
        order = race_order(len(self._val), self._config.search_seed, record.number)

        def ask(begin: int, end: int) -> list[float]:
            examples = [self._val[place] for place in order[begin:end]]
            new = rewards(self._adapter.score(record.texts, examples, "race"))
            record.val_rewards |= new
            return [new[example.key] - known[example.key] for example in examples]

        judged = self._criterion.judge(len(order), chance, ask)
        record.p_value = judged.p_value
        difference = f"{fmean(judged.differences):+.3f} against its parent"
        if judged.p_value is None:
            return False, f"left the race after {len(judged.differences)} of {len(order)} examples: {difference}"
        p_value = f"p = {judged.p_value:.3f}" if judged.p_value >= 0.001 else "p < 0.001"
        return judged.accepted, f"{difference} on validation, {p_value}"


class Library:
    """The library's criterion: a higher sum on the minibatch."""

    def __init__(self, criterion: StrictImprovementAcceptance, history: History) -> None:
        self._criterion = criterion
        self._history = history

    def should_accept(self, proposal: CandidateProposal[Any], state: GEPAState[Any, Any]) -> bool:
        parent, candidate = take_minibatch(self._history, proposal)
        if self._criterion.should_accept(proposal, state):
            return True
        self._history.decide("rejected", not_better(parent, candidate))
        return False


class ToLog:
    """Where the library's lines go."""

    def log(self, message: str) -> None:
        logger.debug(message)


def take_minibatch(history: History, proposal: CandidateProposal[Any]) -> tuple[list[float], list[float]]:
    """Rewards of the parent and of the open candidate, which are noted down."""
    parent, candidate = list(proposal.subsample_scores_before or ()), list(proposal.subsample_scores_after or ())
    assert history.open is not None
    history.open.minibatch = {"parent": parent, "candidate": candidate}
    return parent, candidate


def not_better(parent: Sequence[float], candidate: Sequence[float]) -> str:
    return f"not better on its minibatch: {fmean(candidate):.3g} against its parent's {fmean(parent):.3g}"
