"""The reward falls from where it was, or swings by more than the luck of a batch: steps are too large."""

from __future__ import annotations

import math
from collections.abc import Iterator

from whet.rl.doctor.changes import calmer
from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, RunRecord, Series

NAME = "reward-unstable"
SMOOTH = 3
"""Steps whose mean is compared: one batch may be lucky, three are rarely."""
FALL = 0.5
"""Share of its best that the reward has lost: less than half happens on the way and is often made up."""
CHANCE = 4.0
"""Multiples of the chance deviation of a batch: what is beyond happens in fewer than one of ten thousand batches."""
LASTING = 6
"""Steps in none of which it came half-way back: what does is a swing, not a fall."""
SWING_STEPS = 12
"""Steps that show swings: fewer hold too few turns."""
LEAST = 0.01
"""Jumps below which nothing swings, whatever chance does: rewards that are all equal have no deviation at all."""


def check(run: RunRecord) -> Iterator[Finding]:
    rewards = run.series("reward/mean")
    if len(rewards) < MIN_STEPS:
        return
    yield from _fallen(run, rewards) or _swinging(run, rewards.last(SWING_STEPS))


def _fallen(run: RunRecord, rewards: Series) -> list[Finding]:
    now = rewards.last(SMOOTH)
    levels = rewards.means(SMOOTH)
    reached = [(levels.values[i], f"up to step {levels.steps[i]}") for i in range(len(levels))]
    reached.append((rewards.values[0], f"in step {rewards.steps[0]}"))  # large steps can ruin a policy with the first
    best, when = max(reached)
    if best <= 0 or best - now.mean < max(FALL * abs(best), CHANCE * run.noise / math.sqrt(SMOOTH)):
        return []
    if max(rewards.values[1:][-LASTING:]) > (best + now.mean) / 2:
        return []
    evidence = [f"mean reward {best:.3f} {when}, {now.mean:.3f} in {now.span}", *_norms(run, now)]
    return [Finding(NAME, "error", "the policy lost what it could do: its steps are too large", evidence, calmer(run))]


def _swinging(run: RunRecord, rewards: Series) -> list[Finding]:
    if len(rewards) < SWING_STEPS:
        return []
    jumps = [after - before for before, after in zip(rewards.values, rewards.values[1:], strict=False)]
    typical = math.sqrt(math.fsum(jump * jump for jump in jumps) / len(jumps) / 2)
    if typical < max(LEAST, CHANCE / 2 * run.noise):
        return []
    evidence = [
        f"in {rewards.span} the mean reward jumps by {typical:.3f} around its course, between "
        f"{min(rewards.values):.3f} and {max(rewards.values):.3f}; by chance {run.noise:.3f} at most",
        *_norms(run, rewards),
    ]
    changes = calmer(run)
    if order := run.setting("buffer.curriculum"):
        changes = [Change(f"{order} may draw easy and hard tasks by turns: mix them within a batch"), *changes]
    return [Finding(NAME, "warning", "the reward swings by more than chance", evidence, changes)]


def _norms(run: RunRecord, window: Series) -> list[str]:
    norms = run.series("optim/grad_norm").last(len(window))
    return [f"gradient norm {norms.mean:.3g} on average in {norms.span}"] if len(norms) else []
