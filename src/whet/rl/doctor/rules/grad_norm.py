"""The gradient is suddenly many times as large as usual: single batches decide where the policy goes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from whet.rl.doctor.changes import lower_rate
from whet.rl.doctor.finding import Finding, rounded
from whet.rl.doctor.record import RunRecord

NAME = "gradient-spikes"
TIMES = 8.0
"""Multiples of the median: those of the quickstart stay within 2 of it."""
STEPS = 20
"""Steps that are looked at: an older spike has been made up for."""
NOTHING = 1e-5
"""Norm of a step whose groups were all flat: rounding, which says nothing of what is usual."""
FEWEST = 5
"""Steps that taught something, below which nothing is usual."""


def check(run: RunRecord) -> Iterator[Finding]:
    norms = run.series("optim/grad_norm")
    taught = [norm for norm in norms.values if norm > NOTHING]
    if len(taught) < FEWEST:
        return
    usual = statistics.median(taught)
    recent = norms.last(STEPS)
    spikes = [(step, norm) for step, norm in zip(recent.steps, recent.values, strict=True) if norm > TIMES * usual > 0]
    if not spikes:
        return
    shown = ", ".join(f"{norm:.3g} in step {step}" for step, norm in sorted(spikes, key=lambda spike: -spike[1])[:3])
    limit = float(run.setting("optimizer.max_grad_norm", 1.0))
    evidence = [f"gradient norm {shown}; {usual:.3g} is usual (median of {norms.span})"]
    tighter = 2 * usual
    changes = []
    if not limit or limit > tighter:
        bound = rounded(tighter)
        changes.append(run.change("optimizer.max_grad_norm", bound, "a spike then moves the policy as far as any step"))
    else:
        evidence.append(f"gradients are clipped to {limit:g}, so a spike moved the policy no further than that")
    if run.setting("algorithm.advantage") in ("max_rl", "grpo_std"):
        why = f"{run.setting('algorithm.advantage')} enlarges groups that hardly differ or rarely succeed"
        changes.append(run.change("algorithm.advantage", "grpo", why))
    changes.append(lower_rate(run, 3, "each step is then smaller"))
    harmless = limit and limit <= tighter
    yield Finding(NAME, "info" if harmless else "warning", "the gradient has spikes", evidence, changes)
