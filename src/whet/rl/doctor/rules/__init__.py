"""The rules by topic: a run record in, findings out. Pure; each reports nothing of a healthy run.

A rule that lacks what it looks at (too few steps, no rollouts, a metric that this kind of run does not have) reports
nothing. Thresholds are constants of their file, each followed by its reason; docs/design/doctor.md lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from whet.rl.doctor.finding import DoctorFinding
from whet.rl.doctor.record import RunRecord
from whet.rl.doctor.rules import generalisation, resources, reward, sampling, updates

Rule = Callable[[RunRecord], Iterator[DoctorFinding]]

RULES: tuple[Rule, ...] = (
    resources.ended,
    resources.checkpoints,
    resources.errors,
    updates.mismatch,
    reward.swings,
    reward.reward_low,
    sampling.entropy_explosion,
    sampling.identical_outputs,
    sampling.entropy_collapse,
    reward.reward_high,
    reward.no_variance,
    sampling.truncation,
    sampling.unlearned_tokens,
    sampling.lengths,
    updates.grad_norm,
    updates.clipped,
    updates.cut_mass,
    updates.length_bias,
    updates.staleness,
    generalisation.overfitting,
    generalisation.hacking,
    generalisation.forgetting,
    resources.slow,
)
"""In the order in which findings of one severity are listed: what stops a run, what spoils it, what wastes it."""

EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    reward.SWINGS: (sampling.ENTROPY_EXPLOSION,),
    reward.REWARD_LOW: (reward.SWINGS,),
    sampling.IDENTICAL_OUTPUTS: (reward.SWINGS,),
    sampling.LENGTHS: (reward.SWINGS,),
    sampling.ENTROPY_COLLAPSE: (reward.SWINGS, sampling.IDENTICAL_OUTPUTS),
    reward.NO_VARIANCE: (reward.SWINGS, reward.REWARD_LOW, reward.REWARD_HIGH, sampling.IDENTICAL_OUTPUTS),
    sampling.TRUNCATION: (reward.SWINGS, reward.REWARD_LOW, sampling.LENGTHS, sampling.ENTROPY_EXPLOSION),
    updates.CLIPPED: (updates.MISMATCH,),
    updates.GRAD_NORM: (reward.SWINGS,),
    generalisation.HELD_OUT_FALLS: (reward.SWINGS, sampling.ENTROPY_EXPLOSION),
}
"""Findings that follow from others: left out where one of those was made, for its cure is theirs."""
