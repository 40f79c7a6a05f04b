"""`Adapter`: the `gepa` library's adapter, on top of `Rollouts` and `Reflect`.

The library reads scores from it and passes everything else through unseen: a `Scored` is its trajectory, its output is
nothing. One thing it must not see is an error of the reflection model, which it would log and then reflect again; such
errors are kept in `failure`, and the stop condition raises them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gepa.core.adapter import EvaluationBatch

from whet.gepa.search.history import History, rewards
from whet.gepa.types import Candidate, Phase, Reflect, Rollouts, Scored, SearchExample

Evaluation = EvaluationBatch[Scored, None]
CandidateWriter = Mapping[str, Sequence[Mapping[str, Any]]]
MakeRecords = Callable[[Sequence[Scored], str], Sequence[Mapping[str, Any]]]
"""Makes the records that the reflection model reads, from scored calls, for one component."""


@dataclass(eq=False)
class Adapter:
    """One search's side of the library."""

    history: History
    rollouts: Rollouts
    reflect: Reflect
    make_records: MakeRecords
    pass_over_settled: bool
    """Whether nothing is spent on proposals that are settled; the library would score them again."""
    failure: Exception | None = None
    nothing_new: int = 0
    """Reflections in a row without a text worth a call."""

    def score(self, candidate: Candidate, examples: Sequence[SearchExample], phase: Phase) -> list[Scored]:
        """New calls, counted. Raises `BudgetSpent` where they do not all fit."""
        scored = self.rollouts.score(candidate, examples, phase)
        self.history.calls += len(examples)
        return scored

    def evaluate(
        self, batch: list[SearchExample], candidate: dict[str, str], capture_traces: bool = False
    ) -> Evaluation:
        if batch[0].split == "train":
            scored = self.score(candidate, batch, "minibatch")
            return EvaluationBatch([None] * len(batch), [one.reward for one in scored], scored)
        return EvaluationBatch([None] * len(batch), self._validate(candidate, batch))

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Evaluation, components_to_update: list[str]
    ) -> CandidateWriter:
        try:
            scored = eval_batch.trajectories or []
            return {component: self.make_records(scored, component) for component in components_to_update}
        except Exception as error:
            self.failure = error
            raise

    def propose_new_texts(
        self, candidate: dict[str, str], reflective_dataset: CandidateWriter, components_to_update: list[str]
    ) -> dict[str, str]:
        """New texts where there are any worth a call; the library makes none for {}."""
        if self.failure is not None:
            return {}
        try:
            proposed = self.reflect(candidate, reflective_dataset, components_to_update)
        except Exception as error:
            self.failure = error
            return {}
        texts = {**candidate, **{name: text for name, text in proposed.items() if name in candidate}}
        changed = [name for name in texts if texts[name] != candidate[name]]
        if not proposed or (self.pass_over_settled and (not changed or self.history.settled(texts))):
            self.nothing_new += 1
            return {}
        self.nothing_new = 0
        self.history.propose(self.history.accepted(candidate), texts, changed)
        return {name: texts[name] for name in changed or components_to_update}

    def _validate(self, candidate: Candidate, val: Sequence[SearchExample]) -> list[float]:
        """Rewards on all of val; called for here unless a race did: the seed's, and with the library's criterion."""
        history = self.history
        if not history.records:
            history.begin(candidate, self.score(candidate, val, "baseline"))
        elif history.open is not None:
            history.open.val_rewards = rewards(self.score(candidate, val, "race"))
            history.decide("accepted", "its minibatch was better than its parent's")
        known = history.records[-1].val_rewards
        return [known[example.key] for example in val]
