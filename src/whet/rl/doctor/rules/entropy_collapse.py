"""The policy has become certain before it was right: nothing new is tried, so nothing more is learned."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.changes import lower_rate
from whet.rl.doctor.finding import Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord
from whet.rl.doctor.rules.entropy_explosion import USUAL

NAME = "entropy-collapse"
CERTAIN = 0.02
"""Nats per token below which samples hardly differ: of a text of 50 tokens, two samples in three are the same."""
DONE = 0.9
"""Mean reward above which a policy may be certain."""


def check(run: RunRecord) -> Iterator[Finding]:
    entropy, rewards = run.series("policy/entropy"), run.series("reward/mean").last(MIN_STEPS)
    if len(entropy) < MIN_STEPS or not len(rewards):
        return
    before, now = entropy.first(), entropy.last(MIN_STEPS)
    if now.mean > CERTAIN or rewards.mean > DONE:
        return
    evidence = [
        f"entropy {now.mean:.4f} nats a token in {now.span}, {entropy.values[0]:.3f} in step {before.steps[0]}",
        f"mean reward {rewards.mean:.3f} in {rewards.span}",
    ]
    temperature = float(run.setting("sampling.temperature", 1.0))
    changes = []
    if temperature < 1:
        changes.append(run.change("sampling.temperature", 1.0, "so that something else is tried"))
    if entropy.values[0] > CERTAIN:
        changes.append(lower_rate(run, 3, "it grew certain faster than it became right"))
    bonus = float(run.setting("algorithm.entropy_coef", 0.0))
    changes.append(run.change("algorithm.entropy_coef", 3 * bonus or USUAL, "certainty then has a price"))
    yield Finding(NAME, "warning", "the policy stopped exploring before it was right", evidence, changes)
