"""The sampler draws from less than the learner trains: top_p, top_k or min_p take a part of each distribution away."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord

NAME = "cut-sampling"
MUCH = 0.02
"""Mean probability that was cut off: a top_p of 0.95 takes about that of text that is not yet certain."""
OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}


def check(run: RunRecord) -> Iterator[Finding]:
    cut = run.series("policy/cut_mass").last()
    if len(cut) < MIN_STEPS or cut.mean < MUCH or run.setting("algorithm.renormalise_cuts", False):
        return
    evidence = [
        f"the sampler cut {cut.mean:.1%} of the probability off in {cut.span}; ratios are those of whole distributions"
    ]
    why = "probabilities are then compared within what the sampler left"
    changes = [run.change("algorithm.renormalise_cuts", True, why)]
    set_ones = [(name, off) for name, off in OFF.items() if run.setting(f"sampling.{name}", off) != off]
    changes += [run.change(f"sampling.{name}", off, "the sampler then draws from all of it") for name, off in set_ones]
    if not set_ones:
        changes.append(Change("or leave top_p, top_k, min_p and temperature 0 out of what the environment asks for"))
    yield Finding(NAME, "warning", "the sampler draws from less than the learner trains", evidence, changes)
