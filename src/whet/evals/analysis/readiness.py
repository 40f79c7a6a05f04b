"""Whether reinforcement learning would find something to learn: from an evaluation's rewards to a verdict and advice.

Pure. The thresholds: too easy above 80 % of the reward, good from 10 to 70 %, too hard below 5 %. A group whose rewards
are all equal has no advantage to learn from, so the spread inside groups says as much as the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from whet.evals.analysis.statistics import spread

TOO_EASY, GOOD_HIGH, GOOD_LOW, TOO_HARD = 0.80, 0.70, 0.10, 0.05
MANY_ERRORS, MANY_UNREAD, MANY_FLAT = 0.1, 0.1, 0.5
"""Shares of failed rollouts, of answers that no parser could read, and of groups without variance, to be reported."""

Verdict = Literal["too easy", "easy", "good", "hard", "too hard", "unknown"]
Measure = Literal["mean reward", "pass rate"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether reinforcement learning would find something to learn here."""

    verdict: Verdict
    score: float | None  # what the verdict goes by, from 0 to 1
    measure: Measure  # mean reward where rewards lie between 0 and 1, else the pass rate
    group_std: float | None  # mean standard deviation of rewards inside a group; None with one rollout a task
    zero_variance_frac: float | None  # share of groups whose rewards are all equal
    advice: list[str]  # what to change, most important first

    @property
    def reasons(self) -> str:
        """The numbers that the verdict goes by; empty where there is none."""
        text = "" if self.score is None else f"{self.measure} {self.score:.0%}"
        if self.group_std is not None and self.zero_variance_frac is not None:
            text += (
                f"; rewards of one task vary by {self.group_std:.2f}, "
                f"{self.zero_variance_frac:.0%} of the groups have no variance"
            )
        return text


def readiness(
    rewards_by_example: Mapping[object, Sequence[float]],
    *,
    pass_threshold: float,
    errors: int = 0,
    parse_failed_frac: float | None = None,
    greedy: bool = False,
) -> Readiness:
    """The verdict on the rewards of an evaluation, by task.

    Args:
        rewards_by_example: the rewards of each task's rollouts, without those that failed.
        pass_threshold: reward at or above which a rollout passes; it counts where rewards leave [0, 1].
        errors: rollouts that failed.
        parse_failed_frac: share of the rollouts in which the parser found no answer; None where nothing is parsed.
        greedy: whether the rollouts of one task had to be alike.
    """
    groups = [group for group in rewards_by_example.values() if group]
    rewards = [reward for group in groups for reward in group]
    if not rewards:
        return Readiness("unknown", None, "mean reward", None, None, ["Every rollout failed: fix the errors first."])
    bounded = all(0.0 <= reward <= 1.0 for reward in rewards)
    score = math.fsum(rewards if bounded else [reward >= pass_threshold for reward in rewards]) / len(rewards)
    several = [group for group in groups if len(group) > 1]
    group_std = math.fsum(map(spread, several)) / len(several) if several else None
    flat = sum(min(group) == max(group) for group in several) / len(several) if several else None
    verdict = _verdict(score)
    advice = [
        *_about_errors(errors, len(rewards)),
        *_about_answers(parse_failed_frac),
        *_about_difficulty(verdict),
        *_about_spread(flat, greedy),
    ]
    return Readiness(verdict, score, "mean reward" if bounded else "pass rate", group_std, flat, advice)


def _verdict(score: float) -> Verdict:
    if score > TOO_EASY:
        return "too easy"
    if score > GOOD_HIGH:
        return "easy"
    if score >= GOOD_LOW:
        return "good"
    return "hard" if score >= TOO_HARD else "too hard"


def _about_errors(errors: int, scored: int) -> Iterator[str]:
    if errors > MANY_ERRORS * (scored + errors):
        yield f"{errors} of {scored + errors} rollouts failed: fix the errors before trusting any of this."


def _about_answers(parse_failed_frac: float | None) -> Iterator[str]:
    if parse_failed_frac is not None and parse_failed_frac > MANY_UNREAD:
        yield (
            f"In {parse_failed_frac:.0%} of the rollouts the parser found no answer: show the format in the prompt, "
            "reward keeping to it, or allow more tokens (-t) where answers are cut off."
        )


def _about_difficulty(verdict: Verdict) -> Iterator[str]:
    if verdict in ("too easy", "easy"):
        yield "Little is left to learn: make the tasks harder (-a), or the reward stricter."
    elif verdict in ("too hard", "hard"):
        yield (
            "Few rollouts earn anything: make the tasks easier (-a), give partial credit, or start from a better "
            "model. Look at the rollouts first: a reward that cannot read the answers looks the same."
        )


def _about_spread(flat: float | None, greedy: bool) -> Iterator[str]:
    if greedy:
        yield "Greedy rollouts of one task are all alike: evaluate at temperature 1 to see what training would see."
    elif flat is None:
        yield "One rollout a task says nothing about the spread inside groups: evaluate with -r 4 or more."
    elif flat > MANY_FLAT:
        yield (
            f"{flat:.0%} of the groups have no variance and would teach nothing: "
            "larger groups, a finer reward, or tasks nearer to what the model can do."
        )
