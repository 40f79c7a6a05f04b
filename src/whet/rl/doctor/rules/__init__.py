"""The rules by topic: a run record in, findings out. Pure; each reports nothing of a healthy run.

A rule that lacks what it looks at (too few steps, no rollouts, a metric that this kind of run does not have) reports
nothing. Thresholds are constants of their file, each followed by its reason; docs/design/doctor.md lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from whet.rl.doctor.record import Found, RunRecord
from whet.rl.doctor.rules import generalisation, resources, reward, sampling, updates

Rule = Callable[[RunRecord], Iterator[Found]]

RULES: dict[str, Rule] = {
    "killed": resources.killed,
    "out-of-memory": resources.out_of_memory,
    "failed": resources.failed,
    "stalled": resources.stalled,
    "silent": resources.silent,
    "memory": resources.memory,
    "checkpoints": resources.checkpoints,
    "errors": resources.errors,
    "sampler-learner-mismatch": updates.mismatch,
    "policy-drift": updates.drift,
    "reward-unstable": reward.swings,
    "reward-flat-low": reward.reward_low,
    "bare-calls": reward.bare_calls,
    "entropy-explosion": sampling.entropy_explosion,
    "identical-outputs": sampling.identical_outputs,
    "entropy-collapse": sampling.entropy_collapse,
    "reward-flat-high": reward.reward_high,
    "no-variance": reward.no_variance,
    "truncation": sampling.truncation,
    "tokens-without-loss": sampling.unlearned_tokens,
    "lengths": sampling.lengths,
    "gradient-spikes": updates.grad_norm,
    "clipped": updates.clipped,
    "cut-sampling": updates.cut_mass,
    "length-bias": updates.length_bias,
    "staleness": updates.staleness,
    "overfitting": generalisation.overfitting,
    "held-out-falls": generalisation.held_out_falls,
    "reward-hacking": generalisation.hacking,
    "forgetting": generalisation.forgetting,
    "slow": resources.slow,
}
"""In the order in which findings of one severity are listed: what stops a run, what spoils it, what wastes it."""

EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    "reward-unstable": ("entropy-explosion",),
    "reward-flat-low": ("reward-unstable",),
    "identical-outputs": ("reward-unstable",),
    "lengths": ("reward-unstable",),
    "entropy-collapse": ("reward-unstable", "identical-outputs"),
    "no-variance": ("reward-unstable", "reward-flat-low", "reward-flat-high", "identical-outputs"),
    "truncation": ("reward-unstable", "reward-flat-low", "lengths", "entropy-explosion"),
    "clipped": ("sampler-learner-mismatch", "policy-drift"),
    "gradient-spikes": ("reward-unstable",),
    "held-out-falls": ("reward-unstable", "entropy-explosion"),
}
"""Findings that follow from others: left out where one of those was made, for its cure is theirs."""
