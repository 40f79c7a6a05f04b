"""The loss drops or cuts many tokens: what was sampled no longer fits the policy, or the limits are too tight."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.changes import lower_rate
from whet.rl.doctor.finding import Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord
from whet.rl.losses.config import BOUNDS

NAME = "clipped"
MANY = 0.2
"""Share of tokens. A few per cent is what clipping is for; a fifth is lost work."""
MANY_SEQUENCES = 0.5
"""The same of gspo, which clips whole sequences by bounds that are narrow on purpose: its paper reports 15 %."""


def check(run: RunRecord) -> Iterator[Finding]:
    clipped, age = run.series("policy/clip_frac").last(), run.series("staleness/mean").last()
    loss = str(run.setting("algorithm.loss", "masked_is"))
    if len(clipped) < MIN_STEPS or clipped.mean < (MANY_SEQUENCES if loss == "gspo" else MANY):
        return
    stale = age.mean if len(age) else 0.0
    evidence = [
        f"{clipped.mean:.0%} of the tokens of {clipped.span} were dropped or cut by {loss}",
        f"tokens are {stale:.2f} versions old on average",
    ]
    changes = []
    if stale > 1:
        changes.append(run.change("max_async_level", 1, "newer tokens are nearer to the policy"))
    if loss in BOUNDS:
        sides = [
            (f"algorithm.eps_{side}", usual) for side, usual in zip(("high", "low"), BOUNDS[loss][::-1], strict=True)
        ]
        now = {key: float(run.setting(key, usual)) for key, usual in sides}
        if any(now[key] < usual / 2 for key, usual in sides):
            changes += [run.change(key, max(now[key], usual), "the usual room for the ratio") for key, usual in sides]
    elif loss == "masked_is" and float(run.setting("algorithm.mask_threshold", 0.2)) < 0.1:
        changes.append(run.change("algorithm.mask_threshold", 0.2, "the usual room for a probability"))
    changes.append(lower_rate(run, 3, "the policy moves less between sampling and learning"))
    yield Finding(NAME, "warning", "the loss drops many tokens", evidence, changes)
