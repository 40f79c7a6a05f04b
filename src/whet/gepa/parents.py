"""`LikelyBest`: which candidate is changed next: each as often as it could be the best there is.

The validation examples are drawn anew, with replacement, as if others had been picked; whoever has the highest mean on
these is the parent (Thompson sampling by the bootstrap). A candidate that is clearly ahead is the parent almost always,
one of several that are close as often as the others.

The library's own choice goes by who has the highest reward on which example. With one noisy reward for each that is
mostly luck, and candidates that have long been improved on stay parents.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gepa.core.state import GEPAState


class LikelyBest:
    """A candidate selector of the library's kind."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"{seed}/parents")

    def select_candidate_idx(self, state: GEPAState[Any, Any]) -> int:
        """The later of several: it was found to be better than its parent."""
        rewards = state.prog_candidate_val_subscores
        drawn = self._draw.choices(sorted(rewards[0]), k=len(rewards[0]))
        means = [sum(of[example] for example in drawn) for of in rewards]
        return max(range(len(means)), key=lambda candidate: (means[candidate], candidate))
