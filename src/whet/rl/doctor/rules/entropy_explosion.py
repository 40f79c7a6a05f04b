"""The policy has become much less certain than it was: it unlearns."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.changes import calmer
from whet.rl.doctor.finding import Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "entropy-explosion"
TIMES = 2.0
"""Factor over where it began. Learning lowers entropy; a policy that tries more for a while stays below this."""
NATS = 0.5
"""Least rise: a factor of two over next to nothing is nothing."""
USUAL = 0.003
"""A bonus that keeps a policy from growing certain and outweighs no reward."""
FAR = 1.0
"""Rise that is enough whatever the beginning: the policy then chooses among almost three times as many tokens."""


def check(run: RunRecord) -> Iterator[Finding]:
    entropy = run.series("policy/entropy")
    if len(entropy) < MIN_STEPS:
        return
    start, now = entropy.values[0], entropy.last(3)
    if now.mean - start < (NATS if now.mean >= TIMES * start else FAR):
        return
    evidence = [f"entropy {start:.3f} nats a token in step {entropy.steps[0]}, {now.mean:.3f} in {now.span}"]
    changes = calmer(run)
    if bonus := float(run.setting("algorithm.entropy_coef", 0.0)):
        changes = [
            run.change("algorithm.entropy_coef", min(bonus / 10, USUAL), "the bonus pays more than the reward"),
            *changes,
        ]
    yield Finding(NAME, "error", "the policy grows random", evidence, changes)
