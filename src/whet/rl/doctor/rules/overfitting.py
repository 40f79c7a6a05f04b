"""Training rewards rise while held-out tasks get worse: what is learned does not carry over."""

from __future__ import annotations

import math
from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import RunRecord
from whet.rl.monitors.protocol import EvalReport, EvalScore

NAME = "overfitting"
RISE = 0.05
"""Least rise of the training reward, in rewards."""
CHANCE = 2.0
"""Multiples of the deviation of a difference of two means; rewards of 0 and 1 vary by 0.5 at most."""


def check(run: RunRecord) -> Iterator[Finding]:
    reports = [report for report in run.data.evaluations if report.scores]
    rewards = run.series("reward/mean")
    if len(reports) < 2 or not len(rewards):
        return
    before, now = rewards.first(3), rewards.last(3)
    if now.mean - before.mean < RISE:
        return
    for last in _sampled(reports[-1]):
        best = max(
            (score for report in reports[:-1] for score in _sampled(report) if _same(score, last)),
            default=None,
            key=lambda score: score.reward,
        )
        if best is None or not best.reward - last.reward >= _chance(best, last):
            continue
        step = next(report.step for report in reports if best in report.scores)
        yield Finding(
            NAME,
            "warning",
            f"training rewards rise while held-out tasks of {last.environment} get worse",
            [
                f"training reward {before.mean:.3f} in {before.span}, {now.mean:.3f} in {now.span}",
                f"held-out reward of {last.environment} {best.reward:.3f} at step {step}, {last.reward:.3f} at step "
                f"{reports[-1].step} ({last.sampling}, {last.rollouts} rollouts)",
            ],
            [
                Change("more and more varied training tasks, nearer to those that count"),
                run.change("max_steps", max(1, step), "stop where held-out tasks were at their best"),
                *(
                    []
                    if run.setting("algorithm.kl_coef", 0.0)
                    else [run.change("algorithm.kl_coef", 0.01, "holds the policy to what it began with")]
                ),
            ],
        )


def _sampled(report: EvalReport) -> list[EvalScore]:
    """Sampled rather than greedy scores, where there are both."""
    return [score for score in report.scores if score.sampling != "greedy"] or report.scores


def _same(one: EvalScore, other: EvalScore) -> bool:
    return (one.environment, one.sampling) == (other.environment, other.sampling)


def _chance(one: EvalScore, other: EvalScore) -> float:
    return CHANCE * 0.5 * math.sqrt(1 / max(1, one.rollouts) + 1 / max(1, other.rollouts))
