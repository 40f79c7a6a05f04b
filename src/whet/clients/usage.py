"""Tokens that models report to have used, what they cost, and what they are charged to.

What the model under test uses is counted by its environment, in `state["usage"]`. What the models use that judge its
rollouts is charged, by every client, to the rollouts they judge: `state["judge_usage"]`, there once a judge was used.
And what all of them cost together is charged to the open `spending()`, such as the budget of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from whet.types import State, TokenUsage

JUDGE_USAGE = "judge_usage"
"""Field of a state, and of a result row."""


class UsageTotals(dict[str, float]):
    """Live totals `input_tokens` and `output_tokens`; `seen` is False until a model has reported any usage."""

    def __init__(self) -> None:
        super().__init__(input_tokens=0.0, output_tokens=0.0)
        self.seen = False

    def add(self, input_tokens: float, output_tokens: float, cost: float | None = None) -> None:
        """Add tokens, and dollars where they are known. Raises `ValueError` for negative tokens."""
        if input_tokens < 0 or output_tokens < 0:
            raise ValueError(f"token usage cannot be negative: {input_tokens} in, {output_tokens} out")
        self.seen = True
        self["input_tokens"] += input_tokens
        self["output_tokens"] += output_tokens
        if cost is not None:
            self["cost"] = self.get("cost", 0.0) + cost

    def add_response(self, response: Any) -> None:
        """Add what a response reports, if it reports any."""
        tokens = usage_of(response)
        if tokens is not None:
            self.add(*tokens, cost_of(response))

    def snapshot(self) -> TokenUsage | None:
        """The totals as plain numbers; None where no model has reported any."""
        if not self.seen:
            return None
        seen: TokenUsage = {"input_tokens": self["input_tokens"], "output_tokens": self["output_tokens"]}
        if "cost" in self:
            seen["cost"] = self["cost"]
        return seen


@dataclass(slots=True)
class Spending:
    """What models have cost, in dollars."""

    cost: float | None = None  # None while none was reported
    unpriced_tokens: int = 0  # of judges whose price is not known


_spending: ContextVar[Spending | None] = ContextVar("whet_spending", default=None)
_judged: ContextVar[Sequence[State]] = ContextVar("whet_judged", default=())


@contextmanager
def spending() -> Iterator[Spending]:
    """What every response costs that is given within."""
    spent = Spending()
    token = _spending.set(spent)
    try:
        yield spent
    finally:
        _spending.reset(token)


@contextmanager
def judging(states: Sequence[State]) -> Iterator[None]:
    """Responses that are given within are about these rollouts, which share what they use."""
    token = _judged.set(states)
    try:
        yield
    finally:
        _judged.reset(token)


def charge(response: Any, cost: float | None = None) -> None:
    """Charge a response, once, to all that pay for it; `cost` where the response does not know its own.

    For clients. A reward function that calls a model by other means may call it too.
    """
    tokens = usage_of(response)
    if tokens is None:
        return
    cost = cost_of(response) if cost is None else cost
    judged, spent = _judged.get(), _spending.get()
    for state in judged:
        totals = state.setdefault(JUDGE_USAGE, UsageTotals())
        totals.add(*(count / len(judged) for count in tokens), None if cost is None else cost / len(judged))
    if spent is None:
        return
    if cost is not None:
        spent.cost = (spent.cost or 0.0) + cost
    elif judged:
        spent.unpriced_tokens += sum(tokens)


def charge_spent(cost: float | None, unpriced_tokens: int) -> None:
    """Charge what models have cost in another process to the open `spending()`."""
    spent = _spending.get()
    if spent is None:
        return
    if cost is not None:
        spent.cost = (spent.cost or 0.0) + cost
    spent.unpriced_tokens += unpriced_tokens


def cost_of(response: Any) -> float | None:
    """Dollars of a response, where its client knows the price."""
    usage = getattr(response, "usage", None)
    cost = usage.get("cost") if isinstance(usage, Mapping) else None
    return cost if isinstance(cost, float) else None


def usage_of(response: Any) -> tuple[int, int] | None:
    """(input, output) tokens of a response in the words of either OpenAI interface; None where it has no usage."""
    usage = getattr(response, "usage", None)
    if usage is None:
        return None
    first, second = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if not first and not second:
        first, second = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    return first, second


def context_tokens(trajectory: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the context at the end of a rollout: tokens the model wrote, and all the others."""
    used = [tokens for step in trajectory if (tokens := usage_of(step.get("response"))) is not None]
    written = sum(output for _, output in used)
    total = sum(used[-1]) if used else 0
    return {"final_output_tokens": written, "final_input_tokens": max(0, total - written)}


def _count(usage: Any, key: str) -> int:
    value = usage.get(key) if isinstance(usage, Mapping) else getattr(usage, key, None)
    return max(0, int(value)) if isinstance(value, int | float) and value == value else 0
