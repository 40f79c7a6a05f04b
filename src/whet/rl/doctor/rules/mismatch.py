"""Sampler and learner disagree about the probabilities of the same tokens by more than their age explains."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.changes import lower_rate
from whet.rl.doctor.finding import Change, Finding, Severity
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "sampler-learner-mismatch"
ROUNDING = 1e-4
"""KL per token of one policy computed twice, from which it is told: in float32 it stays below 1e-6. With bfloat16 on
one side whet/tiny has about that on tasks it knows, which is worth knowing and nothing more."""
SAME_WEIGHTS = 1e-3
"""What no rounding explains: several times what bfloat16 does."""
PER_VERSION = 0.02
"""KL per token that a version of age may add: a step that moves the policy more than this is too large by itself."""


def check(run: RunRecord) -> Iterator[Finding]:
    kl, age = run.series("policy/kl").last(), run.series("staleness/mean").last()
    if len(kl) < min(MIN_STEPS, max(1, run.steps)) or not len(kl):
        return
    stale = age.mean if len(age) else 0.0
    explained = ROUNDING + PER_VERSION * stale
    if abs(kl.mean) <= explained:
        return
    severity: Severity
    rounded_off = not stale and abs(kl.mean) <= SAME_WEIGHTS and "bfloat16" in _precisions(run)
    if rounded_off:
        what, severity = "bfloat16 makes sampler and learner differ a little", "info"
    elif stale:
        what, severity = "the policy moves too far between sampling and learning", "warning"
    else:
        what, severity = "sampler and learner are not the same policy", "error"
    evidence = [
        f"policy/kl {kl.mean:.2g} per token in {kl.span}; tokens {stale:.2f} versions old on average explain at most "
        f"{explained:.2g}"
    ]
    yield Finding(NAME, severity, what, evidence, list(_changes(run, stale)))


def _precisions(run: RunRecord) -> list[str]:
    return [str(run.setting(key)) for key in ("inference.dtype", "learner.dtype")]


def _changes(run: RunRecord, stale: float) -> Iterator[Change]:
    if run.setting("inference.dtype") == "bfloat16":
        yield run.change("inference.dtype", "float32", "the sampler then computes what the learner does")
    if run.setting("learner.dtype") == "bfloat16":
        yield run.change("learner.dtype", "float32", "the learner then computes what the sampler does")
    if stale > 0:
        yield lower_rate(run, 3, "each version is then nearer to the one before")
        yield run.change("max_async_level", max(0, int(run.setting("max_async_level", 1)) - 1), "fresher tokens")
    elif not run.setting("algorithm.router_replay", False):
        yield Change("of a mixture of experts: algorithm.router_replay = true sends tokens where the sampler sent them")
