"""What ends a run before its last step, with a checkpoint: a request, a budget used up, scores that get no better."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from whet.clients.usage import Spending
from whet.rl.monitors.protocol import EvalReport
from whet.rl.supervision.budgets import Budget
from whet.rl.supervision.early_stop import EarlyStopConfig, check_metric, reason_of_losses, reason_to_stop
from whet.system.cancellation import cancel

T = TypeVar("T")


class StopRequested(Exception):
    """A stop was requested; the step under way was abandoned before its weights changed."""


async def unless_stopped(stop: asyncio.Event, work: Awaitable[T]) -> T:
    """The result of `work`, unless `stop` is set first: then `work` is cancelled and `StopRequested` raised."""
    job = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({job, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise StopRequested
        return job.result()
    finally:
        stopped.cancel()
        await cancel([job])


@dataclass(slots=True)
class Ending:
    """Measures while a run continues, and requests its stop; `reason` is the message for the user."""

    budget: Budget
    early_stop: EarlyStopConfig | None
    used_tokens: Callable[[], int]  # by this process
    spent: Spending  # by this process
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    reason: str | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _began: float = 0.0
    _tokens_counted: int = 0
    _cost_counted: float = 0.0
    _evaluations: list[EvalReport] = field(default_factory=list)
    _losses: list[tuple[int, float]] = field(default_factory=list)  # of validation, by step
    _asked_for_prices: bool = False

    def begin(
        self, stop: asyncio.Event, evaluations: Sequence[EvalReport], losses: Sequence[tuple[int, float]] = ()
    ) -> None:
        """From here on time counts. `stop` is set when the run is to end.

        `evaluations`, and `losses` of validation by step, are those on record.
        """
        self._stop, self._began = stop, self.clock()
        self._evaluations, self._losses = list(evaluations), list(losses)
        remaining = self.budget.remaining_time()
        if remaining is not None:
            asyncio.get_running_loop().call_later(remaining, self._look)
        self._look()

    def after_step(self) -> None:
        self._look()
        if self.budget.config.max_cost is not None and not self._asked_for_prices:
            self._ask_for_prices()

    def _ask_for_prices(self) -> None:
        """Say, once, that the limit does not see everything."""
        if tokens := self.spent.unpriced_tokens:
            missing = f"{tokens} tokens of judges so far have no known price and do not count"
        elif self.budget.cost is None:
            missing = "no model has reported a cost so far"
        else:
            return
        self._asked_for_prices = True
        self.say(
            f"budget.max_cost: {missing}. A model has a price in endpoints.toml or its ClientConfig, the judge of a "
            "JudgeRubric a judge_price."
        )

    def after_evaluation(self, report: EvalReport) -> None:
        self._evaluations.append(report)
        self._look()
        if self.early_stop is None or not self.early_stop.watches_evaluations:
            return
        check_metric(self.early_stop, report)
        if report.moment == "during" and self.reason is None:
            self._end(reason_to_stop(self.early_stop, self._evaluations))

    def after_validation(self, step: int, loss: float) -> None:
        self._losses.append((step, loss))
        if self.early_stop is not None and not self.early_stop.watches_evaluations and self.reason is None:
            self._end(reason_of_losses(self.early_stop, self._losses))

    def state_dict(self) -> dict[str, Any]:
        self._count()
        return self.budget.state_dict(self._elapsed)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what a checkpoint says, {} where training begins; what was used after it is not counted."""
        self._tokens_counted, self._cost_counted = self.used_tokens(), self.spent.cost or 0.0
        self.budget.load_state_dict(state)

    @property
    def _elapsed(self) -> float:
        return self.clock() - self._began

    def _look(self) -> None:
        self._count()
        if self.reason is None:
            self._end(self.budget.spent(self._elapsed))

    def _end(self, reason: str | None) -> None:
        if reason is not None:
            self.reason = reason
            self._stop.set()

    def _count(self) -> None:
        used = self.used_tokens()
        self.budget.tokens += used - self._tokens_counted
        self._tokens_counted = used
        if self.spent.cost is not None:
            self.budget.cost = (self.budget.cost or 0.0) + self.spent.cost - self._cost_counted
            self._cost_counted = self.spent.cost
