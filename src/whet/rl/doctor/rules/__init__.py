"""The rules, one a file: what a run wrote in, findings out. Pure; each says nothing of a healthy run.

A rule that lacks what it looks at (too few steps, no rollouts, a metric that this kind of run does not have) says
nothing. Thresholds are constants of their file, with the reason beside them; docs/design/doctor.md lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from whet.rl.doctor.finding import Finding
from whet.rl.doctor.record import RunRecord
from whet.rl.doctor.rules import (
    checkpoints,
    clipped,
    cut_mass,
    ended,
    entropy_collapse,
    entropy_explosion,
    errors,
    forgetting,
    grad_norm,
    hacking,
    identical_outputs,
    length_bias,
    lengths,
    mismatch,
    no_variance,
    overfitting,
    reward_high,
    reward_low,
    slow,
    staleness,
    swings,
    truncation,
    unlearned_tokens,
)

Rule = Callable[[RunRecord], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    ended.check,
    checkpoints.check,
    errors.check,
    mismatch.check,
    swings.check,
    reward_low.check,
    entropy_explosion.check,
    identical_outputs.check,
    entropy_collapse.check,
    reward_high.check,
    no_variance.check,
    truncation.check,
    unlearned_tokens.check,
    lengths.check,
    grad_norm.check,
    clipped.check,
    cut_mass.check,
    length_bias.check,
    staleness.check,
    overfitting.check,
    hacking.check,
    forgetting.check,
    slow.check,
)
"""In the order in which findings of one severity are told: what stops a run, what spoils it, what wastes it."""

EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    swings.NAME: (entropy_explosion.NAME,),
    reward_low.NAME: (swings.NAME,),
    identical_outputs.NAME: (swings.NAME,),
    lengths.NAME: (swings.NAME,),
    entropy_collapse.NAME: (swings.NAME, identical_outputs.NAME),
    no_variance.NAME: (swings.NAME, reward_low.NAME, reward_high.NAME, identical_outputs.NAME),
    truncation.NAME: (swings.NAME, reward_low.NAME, lengths.NAME, entropy_explosion.NAME),
    clipped.NAME: (mismatch.NAME,),
    grad_norm.NAME: (swings.NAME,),
    overfitting.FALLS: (swings.NAME, entropy_explosion.NAME),
}
"""Findings that follow from others: left out where one of those was made, for its cure is theirs."""
