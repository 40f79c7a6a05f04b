"""Rollouts are too old when they are learned from, or so old that they are thrown away."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord, Series

NAME = "staleness"
WASTED = 0.1
"""Share of the rollouts that were cancelled or dropped for their age: work that taught nothing."""
OLD = 4.0
"""Mean age in versions: half of what max_off_policy_steps allows by default, so that many tokens are near its end."""


def check(run: RunRecord) -> Iterator[Finding]:
    if not run.asynchronous:
        return
    cancelled, dropped = run.series("rollouts/cancelled_frac").last(), run.series("groups/too_old").last()
    age = run.series("staleness/mean").last()
    if len(age) < MIN_STEPS:
        return
    lost = max(0.0, dropped.mean) / (max(0.0, dropped.mean) + run.groups) if len(dropped) else 0.0
    thrown = lost + (cancelled.mean if len(cancelled) else 0.0)
    if thrown < WASTED and age.mean < OLD:
        return
    limit = int(run.setting("max_off_policy_steps", 8))
    evidence = [
        f"in {age.span} tokens were {age.mean:.2f} versions old on average; the limit is {limit}",
        f"{cancelled.mean if len(cancelled) else 0:.0%} of the rollouts were cancelled and {lost:.0%} of the groups "
        "dropped for their age",
    ]
    if thrown >= WASTED:
        yield Finding(NAME, "warning", "rollouts are thrown away for their age", evidence, _less(run, age, limit))
    else:
        yield Finding(NAME, "warning", "the learner learns from old rollouts", evidence, _less(run, age, None))


def _less(run: RunRecord, age: Series, limit: int | None) -> list[Change]:
    changes = []
    if float(run.setting("oversampling_factor", 1.0)) > 1:
        changes.append(run.change("oversampling_factor", 1.0, "fewer groups are begun ahead"))
    level = int(run.setting("max_async_level", 1))
    if level > 1:
        changes.append(run.change("max_async_level", 1, "rollouts begin later, with newer weights"))
    if limit is not None and limit < OLD:
        changes.append(run.change("max_off_policy_steps", 2 * limit or 2, "the loss bounds what older tokens may do"))
    if not changes:
        rollouts = int(run.setting("max_concurrent", 512))
        changes.append(run.change("max_concurrent", max(1, rollouts // 2), "fewer rollouts wait for a place"))
    return changes
