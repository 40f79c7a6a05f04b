"""Long rollouts grow too old before they are trained: what is learned is learned from short ones."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "length-bias"
SOME = 0.03
"""Share of the drawn rollouts that are long, from which it matters whether they are trained."""
KEPT = 0.5
"""Long rollouts among the trained, over those among the drawn: nothing but age takes any away."""


def check(run: RunRecord) -> Iterator[Finding]:
    drawn, trained = (run.series(f"rollouts/long_{which}_frac").last() for which in ("drawn", "trained"))
    if len(trained) < MIN_STEPS or drawn.mean < SOME or trained.mean >= KEPT * drawn.mean:
        return
    limit, level = int(run.setting("max_off_policy_steps", 8)), int(run.setting("max_async_level", 1))
    evidence = [
        f"{drawn.mean:.0%} of the rollouts drawn in {drawn.span} are more than twice as long as the median, "
        f"{trained.mean:.0%} of those trained",
        f"a rollout that needs more than {limit} of the learner's steps is given up; it may begin {level} ahead",
    ]
    changes = [run.change("max_off_policy_steps", 2 * (limit + 1), "long rollouts then come to their end")]
    if level > 1:
        changes.append(run.change("max_async_level", 1, "rollouts then begin nearer to the step that trains them"))
    yield Finding(NAME, "warning", "long rollouts are left out of training", evidence, changes)
