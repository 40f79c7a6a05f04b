"""What ends a run before its last step, with a checkpoint: a request, a budget used up, scores that get no better.

`Budget`: what a run may use in all: time, tokens, money. Pure; `run.py` measures and stops.

A budget is the run's, not the process's: what was used before a resume counts. What a killed process used after its
last checkpoint is done again and not counted twice.

`reason_to_stop`: whether held-out scores say that training on would be a waste; the scores so far in, a reason out.

There is nothing to remember: evaluations and validation losses are on record (`evals.jsonl`, `metrics.jsonl`), so a
resumed run decides as one that was never interrupted.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from whet.clients.usage import Spending
from whet.config import StrictModel
from whet.errors import ConfigError
from whet.rl.monitors.protocol import EvalReport
from whet.rollouts.totals import EvalScore
from whet.rubrics.metric_names import flat_name
from whet.system.cancellation import cancel


class EarlyStopConfig(StrictModel):
    """`[early_stop]`: present = end the run when evaluations during training stop getting better, or fall."""

    metric: str = Field("reward", min_length=1, description="reward, or a reward function or metric of the rubric.")
    environment: str | None = Field(None, description="Name of the evaluated environment; absent: the mean of all.")
    patience: int = Field(3, ge=1, description="Evaluations in a row without a new best after which the run ends.")
    min_delta: float = Field(0.0, ge=0, description="Least gain over the best that counts as a new best.")
    collapse: float | None = Field(
        None, gt=0, description="End the run at once when the metric is this much below its best; absent: never."
    )

    @property
    def watches_evaluations(self) -> bool:
        """Rather than a loss."""
        return True


def reason_to_stop(config: EarlyStopConfig, evaluations: Sequence[EvalReport]) -> str | None:
    """Why to stop after these evaluations (in their order), in words for people; None to go on."""
    scores = [(report.step, value_of(config, report)) for report in evaluations if report.moment != "after"]
    what = f"eval {config.metric}" + (f" of {config.environment}" if config.environment else "")
    return _reason(config, scores, what, sign=1)


def reason_of_losses(config: EarlyStopConfig, losses: Sequence[tuple[int, float]]) -> str | None:
    """The same of a loss, which is better where it is lower, by step."""
    return _reason(config, [(step, -loss) for step, loss in losses], config.metric, sign=-1)


def _reason(config: EarlyStopConfig, scores: Sequence[tuple[int, float]], what: str, *, sign: int) -> str | None:
    """Scores are better where they are higher; times `sign` they are what people know."""
    best_step, best = -1, -math.inf
    since = 0
    for step, score in scores:
        if math.isnan(score):  # every rollout of it errored, or there is no loss: it says nothing
            continue
        if score > best + (config.min_delta if best > -math.inf else 0.0):
            best_step, best, since = step, score, 0
            continue
        since += 1
    if not scores or math.isnan(last := scores[-1][1]) or since == 0:
        return None
    known, now = f"{sign * best:.3f} (step {best_step})", f"{sign * last:.3f} (step {scores[-1][0]})"
    if config.collapse is not None and last <= best - config.collapse:
        return f"{what} {'fell' if sign > 0 else 'rose'} from {known} to {now}: early_stop.collapse"
    if since >= config.patience:
        times = "evaluations" if sign > 0 else "validations"
        return f"{what} has not been better than {known} for {since} {times}: early_stop.patience = {config.patience}"
    return None


def check_metric(config: EarlyStopConfig, report: EvalReport) -> None:
    """Raise `ConfigError` where scored rollouts do not have the watched metric: it would never stop anything."""
    scored = [score for score in report.scores if score.rollouts > score.errors]
    names = {"reward"}.union(*(map(flat_name, score.metrics) for score in scored))
    if scored and config.metric not in names:
        raise ConfigError(
            f"early_stop.metric = {config.metric!r} is not what evaluations measure; choose from "
            f"{', '.join(sorted(names))}"
        )


def value_of(config: EarlyStopConfig, report: EvalReport) -> float:
    """The watched number: the mean over environments of the first way of sampling; NaN where it is not there."""
    chosen = [score for score in report.scores if config.environment in (None, score.environment)]
    if not chosen:
        return math.nan
    way = chosen[0].sampling
    values = [_of_score(config.metric, score) for score in chosen if score.sampling == way]
    return sum(values) / len(values)


def _of_score(metric: str, score: EvalScore) -> float:
    if metric == "reward":
        return score.reward
    return {flat_name(name): value for name, value in score.metrics.items()}.get(metric, math.nan)


UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
USED = "budget"
"""Where a checkpoint keeps what was used."""


def duration(value: Any) -> Any:
    """`"90"`, `"1.5h"`, `"2h 30min"` in seconds; what is no text is left to others."""
    if not isinstance(value, str):
        return value
    pairs = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.strip())
    whole = re.fullmatch(r"(?:\d+(?:\.\d+)?\s*[a-z]*\s*)+", value.strip())
    if whole is None or any(unit and unit not in UNITS for _, unit in pairs):
        raise ValueError('expected seconds, or a text such as "90 s", "45 min", "2h 30min"')
    return sum(float(number) * UNITS[unit or "s"] for number, unit in pairs)


class BudgetConfig(StrictModel):
    """`[budget]`: when a run ends before its last step, with a checkpoint. A larger one continues with --resume."""

    max_time: Annotated[float, BeforeValidator(duration)] | None = Field(
        None, gt=0, description='Time of the whole run: seconds, or a text such as "2h 30min".'
    )
    max_tokens: int | None = Field(None, ge=1, description="Tokens sampled from the policy, evaluations included.")
    max_rollouts: int | None = Field(
        None, ge=1, description="Rollouts to train on, in whole batches; evaluated as after the last step."
    )
    max_cost: float | None = Field(
        None, gt=0, description="Dollars of judges and other models whose price is known, evaluations included."
    )


@dataclass(slots=True)
class Budget:
    """What has been used, and whether that is all."""

    config: BudgetConfig = field(default_factory=BudgetConfig)
    counted: str = "sampled"  # what became of the tokens that count
    time: float = 0.0  # seconds, before this process
    tokens: int = 0
    cost: float | None = None  # dollars; None while nothing has reported any

    def remaining_time(self) -> float | None:
        """Seconds that this process may take; None without a limit."""
        return None if self.config.max_time is None else max(0.0, self.config.max_time - self.time)

    def spent(self, elapsed: float) -> str | None:
        """What of it is used up, in words for people, when this process has taken `elapsed` seconds; else None."""
        limit = self.config
        if limit.max_time is not None and self.time + elapsed >= limit.max_time:
            return f"budget.max_time = {limit.max_time:g} s is used up"
        if limit.max_tokens is not None and self.tokens >= limit.max_tokens:
            return f"budget.max_tokens = {limit.max_tokens} is used up ({self.tokens} tokens were {self.counted})"
        if limit.max_cost is not None and (self.cost or 0.0) >= limit.max_cost:
            return f"budget.max_cost = {limit.max_cost:g} is used up ({self.cost:.4f} dollars)"
        return None

    def examples_spent(self) -> str:
        """What ended a run that came to the end of `max_rollouts`, or of the `max_rows` of fine-tuning."""
        key = "max_rollouts" if self.config.max_rollouts is not None else "max_rows"
        return f"budget.{key} = {getattr(self.config, key)} is used up"

    def state_dict(self, elapsed: float) -> dict[str, Any]:
        return {USED: {"time": self.time + elapsed, "tokens": self.tokens, "cost": self.cost}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint says; one without a word about budgets has used nothing."""
        used = state.get(USED) or {}
        self.time, self.tokens, self.cost = used.get("time", 0.0), used.get("tokens", 0), used.get("cost")


T = TypeVar("T")


class StopRequested(Exception):
    """A stop was requested; the current step was abandoned before its weights changed."""


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
