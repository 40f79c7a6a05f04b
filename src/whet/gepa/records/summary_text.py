"""What a search found, in plain words: for the page and for `whet gepa show`. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Literal

from whet.display.text import number
from whet.gepa.records.stored import StoredSearch
from whet.gepa.types import CandidateRecord, Confirmation

Sureness = Literal["good", "unsure", "bad"]


def headline(search: StoredSearch) -> tuple[str, str, Sureness]:
    """A verdict, what it means, and how good it is."""
    best, seed, found = search.best, search.seed, search.confirmation
    if best is None or seed is None:
        return "Nothing is known yet:", "the seed prompt has not been validated.", "unsure"
    if best is seed and search.state != "finished":
        return "Not ended:", "so far no proposal was shown to be better than the seed prompt.", "unsure"
    if best is seed:
        return "The seed prompt stays:", "no proposal was shown to be better.", "unsure"
    if found is None:
        return "Not confirmed:", f"candidate {best.number} was better on the examples it was chosen by.", "unsure"
    if found.real:
        return f"Candidate {best.number} is better than the seed", "on examples that the search has never seen.", "good"
    if found.high < 0:
        return f"Candidate {best.number} is worse than the seed", "on examples that the search has never seen.", "bad"
    return "This is not a difference:", "on examples that the search has never seen, it could be chance.", "unsure"


def confirmation_words(search: StoredSearch) -> Iterator[str]:
    """What was measured, a sentence each."""
    best, seed, found = search.best, search.seed, search.confirmation
    if best is None or seed is None:
        return
    if best is not seed:
        yield (
            f"Validation: candidate {best.number} {number(best.val_mean)}, the seed {number(seed.val_mean)}. "
            "The winner owes part of this to having been chosen by it."
        )
    if found is not None:
        yield held_out(found)


def held_out(found: Confirmation) -> str:
    """The confirmation as a sentence."""
    what = (
        f"Held-out: over {found.pairs:,} examples the best prompt earned {number(found.best_mean)} and the seed "
        f"{number(found.seed_mean)}: a difference of {found.difference:+.3f}, "
        f"95 % interval {found.low:+.3f} to {found.high:+.3f}"
    )
    if found.real:
        return f"{what}, which is above 0."
    if found.high < 0:
        return f"{what}, which is below 0."
    return f"{what}, which includes 0: this is not a difference."


def tested(one: CandidateRecord) -> Iterator[str]:
    """How a candidate was tested, a fact each."""
    first = one.calls_before + 1
    yield f"Calls {first:,} to {one.calls_after:,}" if first <= one.calls_after else f"After {one.calls_after:,} calls"
    parent, own = one.minibatch.get("parent"), one.minibatch.get("candidate")
    if parent and own:
        yield f"on its minibatch {number(statistics.fmean(own))}, its parent {number(statistics.fmean(parent))}"
    if one.val_rewards:
        mean = number(statistics.fmean(one.val_rewards.values()))
        yield f"on {len(one.val_rewards):,} validation examples {mean}"
    if one.p_value is not None:
        yield f"p = {one.p_value:.3g} against its parent"
