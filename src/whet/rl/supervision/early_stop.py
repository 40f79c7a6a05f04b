"""Whether held-out scores say that training on would be a waste. Pure: the scores so far in, a reason or None out.

There is nothing to remember: evaluations and validation losses are on record (`evals.jsonl`, `metrics.jsonl`), so a
resumed run decides as one that was never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from whet.config import StrictModel
from whet.errors import ConfigError
from whet.rl.monitors.protocol import EvalReport
from whet.rollouts.totals import EvalScore
from whet.rubrics.metric_names import flat_name


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
