"""What a rollout samples has become far longer or far shorter than it was: the reward may pay for length."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "lengths"
LONGER, SHORTER = 2.5, 0.4
"""Factors over the first steps. Reasoning that pays grows too, but over hundreds of steps."""


def check(run: RunRecord) -> Iterator[Finding]:
    lengths = run.series("seq_len/trained_mean")
    if len(lengths) < MIN_STEPS:
        return
    before, now = lengths.first(2), lengths.last(3)
    if before.mean <= 0:
        return
    times = now.mean / before.mean
    if SHORTER < times < LONGER:
        return
    rewards = run.series("reward/mean")
    evidence = [
        f"{before.mean:.1f} sampled tokens a sequence in {before.span}, {now.mean:.1f} in {now.span}",
        f"mean reward {rewards.first(2).mean:.3f} then, {rewards.last(3).mean:.3f} now",
    ]
    if times >= LONGER:
        tokens = int(run.setting("sampling.max_tokens", 512))
        full = run.change("algorithm.length_penalty_full", tokens, "the length from which all of it is taken")
        price = run.change("algorithm.length_penalty", 0.1, "length then has a price (with length_penalty_full)")
        changes = [price, full] if not run.setting("algorithm.length_penalty", 0.0) else []
        changes.append(Change("look at the longest rollouts: does the reward pay for length?"))
        yield Finding(NAME, "warning", "rollouts grow far longer", evidence, changes)
        return
    changes = []
    if penalty := float(run.setting("algorithm.length_penalty", 0.0)):
        changes.append(run.change("algorithm.length_penalty", penalty / 4, "it outweighs the reward"))
    changes.append(Change("look at the shortest rollouts: does the reward pay for saying little?"))
    yield Finding(NAME, "warning", "rollouts shrink to almost nothing", evidence, changes)
