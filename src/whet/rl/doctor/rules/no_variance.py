"""Rewards inside groups are all equal: those groups have no advantage and teach nothing."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.changes import larger_groups
from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "no-variance"
MANY_FLAT = 0.7
"""Share of flat groups. Half and more is common at the end of a good run; from here on most of a batch is wasted."""
HOPELESS = 0.95
"""Share of flat groups from which sampling others instead finds none."""
DONE = 0.9
"""Mean reward above which flat groups are solved ones: that is success."""


def check(run: RunRecord) -> Iterator[Finding]:
    flat, rewards = run.series("groups/zero_variance_frac").last(), run.series("reward/mean").last(MIN_STEPS)
    if run.setting("algorithm.advantage") == "reinforce_pp":  # rollouts are compared with the batch, not their group
        return
    if len(flat) < MIN_STEPS or flat.mean < MANY_FLAT or not len(rewards) or rewards.mean > DONE:
        return
    evidence = [
        f"{flat.mean:.0%} of the groups of {flat.span} have no variance, at a mean reward of {rewards.mean:.3f}",
    ]
    yield Finding(
        NAME, "warning", "most groups teach nothing: their rewards are all equal", evidence, _changes(run, flat.mean)
    )


def _changes(run: RunRecord, flat: float) -> list[Change]:
    changes = []
    temperature = float(run.setting("sampling.temperature", 1.0))
    if temperature < 1:
        changes.append(run.change("sampling.temperature", 1.0, "attempts at a task then differ more"))
    if int(run.setting("rollouts_per_example", 8)) == 1:
        return larger_groups(run, "a single rollout has nothing to be compared with, so its advantage is 0")
    changes += larger_groups(run, "in larger groups some attempt differs")
    if flat < HOPELESS and not run.setting("buffer.difficulty_threshold", 0.0):
        changes.append(run.change("buffer.difficulty_threshold", 1e-6, "flat groups are replaced by others"))
    return [*changes, Change("a finer reward: partial credit instead of all or nothing")]
