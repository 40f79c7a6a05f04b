"""Changes that several rules propose, as configs that a run can be made with."""

from __future__ import annotations

from whet.rl.doctor.finding import Advice, rounded
from whet.rl.doctor.record import RunRecord

LARGEST_RATE = 1e-3
"""Largest learning rate proposed for AdamW and Muon: beyond it steps are too large for models of any size.
A fraction of a rate far outside of the usual range would still be outside. SGD's rates have no such range."""
GROUP_SIZE = 8
"""Smallest group proposed: the default of training."""


def lower_rate(run: RunRecord, factor: float, why: str) -> Advice:
    """The learning rate divided by `factor`, and at most the largest sensible one."""
    rate = float(run.setting("learning_rate", 1e-5)) / factor
    if run.setting("optimizer.type", "adamw") != "sgd":
        rate = min(rate, LARGEST_RATE)
    return run.change("learning_rate", rounded(rate), why)


def larger_groups(run: RunRecord, why: str) -> list[Advice]:
    """Twice the group size, and at least `GROUP_SIZE`; with a batch and a concurrency that hold such groups.

    Empty where a batch of several groups would become a single one, or rollouts could not run at once.
    """
    size, batch = int(run.setting("rollouts_per_example", 8)), int(run.setting("batch_size", 8))
    wanted = max(2 * size, GROUP_SIZE)
    if int(run.setting("max_concurrent", 512)) < wanted:
        return []
    changes = [run.change("rollouts_per_example", wanted, why)]
    if batch % wanted:
        if size >= GROUP_SIZE:
            return []
        whole = -(-batch // wanted) * wanted
        changes.append(run.change("batch_size", whole, f"a batch holds whole groups of {wanted}"))
    return changes


def anchored(run: RunRecord) -> list[Advice]:
    """A KL term, where there is none."""
    return run.unless_set("algorithm.kl_coef", 0.01, "holds the policy to what the run began with")


def calmer(run: RunRecord) -> list[Advice]:
    """Smaller steps, and what else keeps a policy where it is."""
    clipped = []
    if not run.setting("optimizer.max_grad_norm", 1.0):
        clipped = [run.change("optimizer.max_grad_norm", 1.0, "a single batch can then not move it far")]
    return [lower_rate(run, 10, "smaller steps; resume from a checkpoint before the fall"), *clipped, *anchored(run)]
