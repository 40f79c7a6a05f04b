"""The reward is near its top: nothing is left to learn, from the beginning or since some step."""

from __future__ import annotations

from collections.abc import Iterator

from whet.rl.doctor.finding import Change, Finding
from whet.rl.doctor.record import MIN_STEPS, OPENING, WINDOW, RunRecord

NAME = "reward-flat-high"
TOP = 0.97
"""Mean reward (of at most 1) from which it is near the top; readiness calls 0.8 too easy, but that can still rise."""
FLAT = 0.8
"""Share of groups without variance from which steps are wasted, whatever is left of the reward."""


def check(run: RunRecord) -> Iterator[Finding]:
    solved = []
    for number, environment in enumerate(run.environments):
        rewards = run.series(f"reward/{environment}/mean")
        now, before = rewards.last(), rewards.first()
        if len(rewards) < MIN_STEPS or max(rewards.values) > 1 or now.mean < TOP:
            continue
        solved.append(environment)
        if before.mean < TOP:
            continue
        level = f"mean reward of {environment} {before.mean:.3f} in {before.span}, {now.mean:.3f} in {now.span}"
        changes = [Change("make its tasks harder ([env.args]) or its reward stricter")]
        if len(run.environments) > 1:
            weight = float(run.setting(f"env.{number}.weight", 1.0))
            lower = run.change(f"env.{number}.weight", weight / 4, "leave the batch to what can be learned")
            changes = [lower, *changes] if not run.setting("buffer.env_ratios") else changes
        yield Finding(NAME, "warning", f"{environment} had nothing to teach from the first step", [level], changes)
    flat = run.series("groups/zero_variance_frac").last()
    begun_below = any(run.series(f"reward/{name}/mean").first().mean < TOP for name in solved)
    if solved == run.environments and begun_below and len(flat) >= OPENING + WINDOW // 2 and flat.mean >= FLAT:
        yield Finding(
            NAME,
            "info",
            "everything there is to learn has been learned",
            [f"{flat.mean:.0%} of the groups of {flat.span} have no variance, and each environment is above {TOP:g}"],
            [run.change("max_steps", run.steps, "stop here; or go on with harder tasks")],
        )
