"""What a budget affords, before anything is paid for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from whet.clients.config import Price
from whet.errors import GepaError
from whet.gepa.calls.budget import least_calls, pairs_for
from whet.gepa.config import GepaConfig
from whet.gepa.splits import Splits
from whet.gepa.types import SearchPlan

CHARS_OF_A_TOKEN = 4
TOKENS_OF_AN_ANSWER = 500
"""Of a call whose sampling sets no limit."""


def held_out_wanted(config: GepaConfig) -> int:
    """Examples of the final comparison: as configured, else as many as the calls reserved for it pay for.

    Raises `GepaError` where the two do not fit together.
    """
    wanted, calls = config.gepa.held_out, config.gepa.confirm_calls
    if wanted is None:
        return pairs_for(config.max_calls, calls)
    if calls is not None and calls < 2 * wanted:
        raise GepaError(
            f"[gepa] held_out = {wanted} takes {2 * wanted} calls, and confirm_calls = {calls}. "
            "Leave one of the two out."
        )
    return wanted


def make_plan(config: GepaConfig, splits: Splits, price: Price | None = None) -> SearchPlan:
    """The plan of a search. Raises `GepaError` where the budget is too small for one whole round."""
    num_val, held_out = len(splits.val), len(splits.held_out)
    rejected = 2 * config.minibatch_size
    accepted = rejected + num_val
    reserved = 2 * held_out
    _check_budget(config, num_val, held_out)
    for_proposals = config.max_calls - reserved - num_val
    return SearchPlan(
        max_calls=config.max_calls,
        reserved=reserved,
        baseline=num_val,
        per_rejected=rejected,
        per_accepted=accepted,
        fewest_proposals=for_proposals // accepted,
        most_proposals=(for_proposals - accepted) // rejected + 1,
        cost_per_call=None if price is None else _cost_of_a_call(config, splits, price),
        num_train=len(splits.train),
        num_val=num_val,
        num_held_out=held_out,
        notes=tuple(splits.notes),
    )


def describe(plan: SearchPlan) -> list[str]:
    """The plan in words, a line each."""
    lines = [
        f"{plan.max_calls} calls: {plan.baseline} for the first prompt on {plan.num_val} validation examples, "
        f"{plan.reserved} reserved for the final comparison on {plan.num_held_out} held-out examples",
        f"{plan.max_calls - plan.reserved - plan.baseline} for proposals: {plan.per_rejected} for one that is rejected "
        f"at once, {plan.per_accepted} for one that is accepted; {plan.fewest_proposals} to "
        f"{plan.most_proposals} proposals",
    ]
    if plan.cost_per_call is not None:
        lines.append(
            f"about ${plan.cost_per_call:.4f} a call and ${plan.cost_per_call * plan.max_calls:.2f} in all, "
            "reflection not counted: guessed from the length of prompts and the price"
        )
    return [*lines, *plan.notes]


def _check_budget(config: GepaConfig, num_val: int, held_out: int) -> None:
    least = least_calls(num_val=num_val, minibatch_size=config.minibatch_size, held_out=held_out)
    if config.max_calls >= least:
        return
    if config.gepa.held_out is None:  # what is reserved grows with the budget
        least = next(calls for calls in range(config.max_calls, 10**9) if calls >= _least_with(config, num_val, calls))
    raise GepaError(
        f"max_calls (-B) = {config.max_calls} is too few for one round on {num_val} validation examples: it takes "
        f"{least}. Give at least -B {least}, or fewer validation examples (-N)."
    )


def _least_with(config: GepaConfig, num_val: int, calls: int) -> int:
    pairs = pairs_for(calls, config.gepa.confirm_calls)
    return least_calls(num_val=num_val, minibatch_size=config.minibatch_size, held_out=pairs)


def _cost_of_a_call(config: GepaConfig, splits: Splits, price: Price) -> float:
    """Dollars, of one turn: a guess, before any was made."""
    examples = [*splits.train, *splits.val]
    characters = sum(_length(example.row.get("prompt") or ()) for example in examples) / len(examples)
    written = config.sampling.get("max_tokens") or TOKENS_OF_AN_ANSWER
    return (characters / CHARS_OF_A_TOKEN * price.input + float(written) * price.output) / 1_000_000


def _length(prompt: Sequence[object]) -> int:
    return sum(len(str(message.get("content") or "")) for message in prompt if isinstance(message, dict))
