"""Many rollouts are cut off by `max_tokens`, or more and more: what they would have said is not scored."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "truncation"
MANY = 0.3
"""Share of rollouts cut off from which the limit, and not the task, decides what is learned."""
RISE = 0.15
"""Rise over the first steps that says that answers grow into the limit."""


def check(run: RunRecord) -> Iterator[Finding]:
    cut = run.series("rollouts/truncated_frac")
    if len(cut) < MIN_STEPS:
        return
    before, now = cut.first(3), cut.last(MIN_STEPS)
    rising = now.mean - before.mean >= RISE
    if now.mean < MANY and not rising:
        return
    tokens = int(run.setting("sampling.max_tokens", 512))
    lengths = run.series("seq_len/trained_mean").last(len(now))
    evidence = [
        f"{now.mean:.0%} of the rollouts of {now.span} were cut off, {before.mean:.0%} in {before.span}; "
        f"max_tokens is {tokens}"
    ]
    if len(lengths):
        evidence.append(f"{lengths.mean:.0f} tokens are sampled in a rollout on average")
    changes = [run.change("sampling.max_tokens", 2 * tokens, "so that answers come to their end")]
    if rising and not run.setting("algorithm.length_penalty", 0.0):
        changes.append(
            run.change("algorithm.mask_truncated", True, "an answer without its end is then not learned from")
        )
    what = "more and more rollouts are cut off" if rising else "many rollouts are cut off"
    yield Finding(NAME, "warning", what, evidence, changes)
