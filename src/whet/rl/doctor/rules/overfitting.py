"""Held-out tasks get worse: what is learned does not carry over, or steps are so large that something is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from whet.rl.doctor.changes import calmer
from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import RunRecord, Series
from whet.rl.monitors.protocol import EvalReport
from whet.rollouts.totals import EvalScore

NAME = "overfitting"
FALLS = "held-out-falls"
RISE = 0.05
"""Rise of the training reward from which it is said to rise while held-out tasks get worse."""
CHANCE = 2.0
"""Multiples of the deviation of a difference of two means; rewards of 0 and 1 vary by 0.5 at most."""


def check(run: RunRecord) -> Iterator[Finding]:
    reports = [report for report in run.data.evaluations if report.scores]
    rewards = run.series("reward/mean")
    if len(reports) < 2 or not len(rewards):
        return
    told = set()
    for last in reports[-1].scores:
        best, step = _best(reports[:-1], last)
        if last.environment in told or best is None or not best.reward - last.reward >= _chance(best, last):
            continue
        told.add(last.environment)
        held_out = (
            f"held-out reward of {last.environment} {best.reward:.3f} at step {step}, {last.reward:.3f} at step "
            f"{reports[-1].step} ({last.sampling}, {last.rollouts} rollouts)"
        )
        yield _finding(run, last.environment, rewards, held_out, step)


def _finding(run: RunRecord, environment: str, rewards: Series, held_out: str, step: int) -> Finding:
    before, now = rewards.first(3), rewards.last(3)
    evidence = [f"training reward {before.mean:.3f} in {before.span}, {now.mean:.3f} in {now.span}", held_out]
    if now.mean - before.mean < RISE:
        return Finding(FALLS, "error", f"held-out tasks of {environment} get worse", evidence, calmer(run))
    changes = [Change("more and more varied training tasks, nearer to those that count")]
    if step:
        changes.append(run.change("max_steps", step, "stop where held-out tasks were at their best"))
    if not run.setting("algorithm.kl_coef", 0.0):
        changes.append(run.change("algorithm.kl_coef", 0.01, "holds the policy to what it began with"))
    what = f"training rewards rise while held-out tasks of {environment} get worse"
    return Finding(NAME, "warning", what, evidence, changes)


def _best(reports: list[EvalReport], last: EvalScore) -> tuple[EvalScore | None, int]:
    """The best earlier score of the same environment, sampled in the same way, and its step."""
    same = [
        (score, report.step)
        for report in reports
        for score in report.scores
        if (score.environment, score.sampling) == (last.environment, last.sampling) and math.isfinite(score.reward)
    ]
    return max(same, key=lambda found: found[0].reward, default=(None, 0))


def _chance(one: EvalScore, other: EvalScore) -> float:
    return CHANCE * 0.5 * math.sqrt(1 / max(1, one.rollouts) + 1 / max(1, other.rollouts))
