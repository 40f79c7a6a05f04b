"""`confirm`: the winner against the seed on examples that no part of the search has seen.

The winner was chosen for its validation rewards, so these flatter it. Here both prompts are called on the same held-out
examples, and the mean difference has a 95 % interval: over examples, by Student's t of the paired differences. Several
calls of one example count as one observation, their mean. Measured on rewards of 0 and 1 (`benchmarks/prompts.py`): the
interval holds the true difference in 94 to 96 of 100 comparisons of 50 or 100 pairs, in 91 to 96 of 20 pairs, and a
difference that is none is called real in 1.9 to 2.6 of 100. With few pairs a bootstrap over examples does worse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from whet.evals.compare import paired_difference
from whet.gepa.types import Candidate, Confirmation, Example, Rollouts, Scored, candidate_id


def confirm(
    seed: Candidate, best: Candidate, held_out: Sequence[Example], rollouts: Rollouts, *, samples: int = 1
) -> Confirmation:
    """Call both on every example, `samples` times. Blocking. Raises `BudgetSpent` where that is not reserved.

    The seed itself is not compared with itself: where it has won there is nothing to confirm.
    """
    assert candidate_id(seed) != candidate_id(best)
    assert len(held_out) >= 2
    examples = [example for example in held_out for _ in range(samples)]
    before = rollouts.score(seed, examples, "confirmation")
    after = rollouts.score(best, examples, "confirmation")
    return compare(before, after)


def compare(before: Sequence[Scored], after: Sequence[Scored]) -> Confirmation:
    """Of the seed's calls and the winner's on the same examples. Pure."""
    first, second = _by_example(before), _by_example(after)
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


def _by_example(scored: Sequence[Scored]) -> dict[str, float]:
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for one in scored:
        rewards[one.call.example].append(one.reward)
    return {example: fmean(values) for example, values in rewards.items()}
