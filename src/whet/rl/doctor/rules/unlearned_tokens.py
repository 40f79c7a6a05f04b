"""Much of what was sampled carries no loss: work that teaches nothing."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "tokens-without-loss"
MANY = 0.3
"""Share of sampled tokens. Cut-off rollouts are long ones, so this is more than their share of the rollouts."""


def check(run: RunRecord) -> Iterator[Finding]:
    masked = run.series("rollouts/masked_token_frac").last()
    if len(masked) < MIN_STEPS or masked.mean < MANY:
        return
    cut = run.series("rollouts/truncated_frac").last()
    tokens = int(run.setting("sampling.max_tokens", 512))
    evidence = [
        f"{masked.mean:.0%} of the sampled tokens of {masked.span} carry no loss: {cut.mean:.0%} of the rollouts "
        f"were cut off at max_tokens = {tokens} and mask_truncated is set"
    ]
    changes = [
        run.change("sampling.max_tokens", 2 * tokens, "answers then end, and are learned from"),
        run.change("algorithm.mask_truncated", False, "cut-off rollouts then count as what they earned"),
    ]
    yield Finding(NAME, "warning", "much of what is sampled is not learned from", evidence, changes)
