"""What learning costs elsewhere: held-out tasks, other metrics of the rubric, other environments of a mix."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from whet.rl.doctor.record import MIN_STEPS, Advice, Found, MetricSeries, Row, RunRecord, anchored, calmer
from whet.rl.monitors.protocol import EvalReport
from whet.rollouts.totals import EvalScore
from whet.rubrics.metric_names import flat_name

RISE = 0.05
"""Rise of the training reward from which it counts as rising while held-out tasks get worse."""
HELD_OUT_CHANCE = 2.0
"""Multiples of the deviation of a difference of two means; rewards of 0 and 1 vary by 0.5 at most."""


def overfitting(run: RunRecord) -> Iterator[Found]:
    """Held-out tasks get worse while the training reward rises: what is learned does not carry over."""
    for environment, evidence, step in _held_out_losses(run, rising=True):
        changes = [Advice("more and more varied training tasks, nearer to those that count")]
        if step:
            changes.append(run.change("max_steps", step, "stop where held-out tasks were at their best"))
        what = f"training rewards rise while held-out tasks of {environment} get worse"
        yield "warning", what, evidence, [*changes, *anchored(run)]


def held_out_falls(run: RunRecord) -> Iterator[Found]:
    """Held-out tasks get worse, and the training reward does not rise: steps are so large that something is lost."""
    for environment, evidence, _ in _held_out_losses(run, rising=False):
        yield "error", f"held-out tasks of {environment} get worse", evidence, calmer(run)


def _held_out_losses(run: RunRecord, *, rising: bool) -> Iterator[tuple[str, list[str], int]]:
    """Environments whose held-out tasks get worse while the training reward is `rising`, or is not: what shows it, and
    the step of their best score."""
    reports = [report for report in run.data.evaluations if report.scores]
    rewards = run.series("reward/mean")
    if len(reports) < 2 or not len(rewards):
        return
    before, now = rewards.first(3), rewards.last(3)
    if (now.mean - before.mean >= RISE) != rising:
        return
    reported = set()
    for last in reports[-1].scores:
        best, step = _best_score(reports[:-1], last)
        if last.environment in reported or best is None or not best.reward - last.reward >= _chance(best, last):
            continue
        reported.add(last.environment)
        held_out = (
            f"held-out reward of {last.environment} {best.reward:.3f} at step {step}, {last.reward:.3f} at step "
            f"{reports[-1].step} ({last.sampling}, {last.rollouts} rollouts)"
        )
        trained = f"training reward {before.mean:.3f} in {before.span}, {now.mean:.3f} in {now.span}"
        yield last.environment, [trained, held_out], step


def _best_score(reports: list[EvalReport], last: EvalScore) -> tuple[EvalScore | None, int]:
    """The best earlier score of the same environment, sampled in the same way, and its step."""
    same = [
        (score, report.step)
        for report in reports
        for score in report.scores
        if (score.environment, score.sampling) == (last.environment, last.sampling) and math.isfinite(score.reward)
    ]
    return max(same, key=lambda pair: pair[0].reward, default=(None, 0))


def _chance(one: EvalScore, other: EvalScore) -> float:
    return HELD_OUT_CHANCE * 0.5 * math.sqrt(1 / max(1, one.rollouts) + 1 / max(1, other.rollouts))


AGREED = 0.3
"""Correlation with the reward in the first step from which a metric is taken for a witness."""
ROLLOUTS = 16
"""Rollouts below which a correlation is chance."""
MOVED = 0.5
"""Deviations (over rollouts of the first step) by which the reward has risen, and the witness fallen."""


def hacking(run: RunRecord) -> Iterator[Found]:
    """The reward rises while a metric falls that correlated with it at first: the policy exploits the reward.

    Other functions and metrics of the rubric are the witnesses. One counts if it agreed with the reward before anything
    was learned (over the rollouts of the first step), and then fell while the reward rose.
    """
    for environment in run.environments:
        rows = [
            row for row in run.first_rollouts if row.get("environment") == environment and row.get("reward") is not None
        ]
        rewards = run.series(f"reward/{environment}/mean")
        if len(rows) < ROLLOUTS or len(rewards) < MIN_STEPS:
            continue
        gained = rewards.last(MIN_STEPS).mean - rewards.values[0]
        if gained < MOVED * _spread([float(row["reward"]) for row in rows]):
            continue
        for name in sorted({key for row in rows for key in row.get("metrics") or {}}):
            yield from _witness(run, environment, name, rows, rewards)


def _witness(run: RunRecord, environment: str, name: str, rows: list[Row], rewards: MetricSeries) -> Iterator[Found]:
    pairs = [
        (float(row["reward"]), float(row["metrics"][name]))
        for row in rows
        if (row.get("metrics") or {}).get(name) is not None
    ]
    values = run.series(f"reward/{environment}/{flat_name(name)}")
    if len(pairs) < ROLLOUTS or len(values) < MIN_STEPS:
        return
    agreed = correlation(*zip(*pairs, strict=True))
    now, rewarded = values.last(MIN_STEPS), rewards.last(MIN_STEPS).mean
    if agreed < AGREED or values.values[0] - now.mean < MOVED * _spread([value for _, value in pairs]):
        return
    evidence = [
        f"mean reward {rewards.values[0]:.3f} in step {rewards.steps[0]}, {rewarded:.3f} in {now.span}",
        f"{name} {values.values[0]:.3f} then, {now.mean:.3f} now; in step {values.steps[0]} the two agreed "
        f"(correlation {agreed:.2f} over {len(pairs)} rollouts)",
    ]
    why = f"look at the best rewarded rollouts: what do they do instead? Then give {name} weight in the rubric"
    what = f"the reward of {environment} rises while its {name} falls"
    yield "warning", what, evidence, [Advice(why), *anchored(run)]


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's; 0 where one of the two does not vary."""
    if _spread(left) == 0 or _spread(right) == 0:
        return 0.0
    return statistics.correlation(left, right)


def _spread(values: Sequence[float]) -> float:
    spread = statistics.pstdev(values)
    return spread if math.isfinite(spread) else 0.0


SMOOTH = 5
"""Steps whose mean is compared; 2 in a run of fewer than ten."""
FALL = 0.3
"""Share of its best that the environment has lost."""
CHANCE = 4.0
"""Multiples of how much its reward changes from a step to the next."""


def forgetting(run: RunRecord) -> Iterator[Found]:
    """One environment of a mix gets worse while the others get better."""
    names, shares = run.environments, _shares(run)
    for number, name in enumerate(names):
        rewards = run.series(f"reward/{name}/mean")
        if len(names) < 2 or len(rewards) < MIN_STEPS:
            continue
        smooth = SMOOTH if len(rewards) >= 2 * SMOOTH else 2
        now, levels = rewards.last(smooth), rewards.means(smooth)
        best, step = max(zip(levels.values, levels.steps, strict=True), key=lambda level: level[0])
        chance = CHANCE * statistics.median(abs(b - a) for a, b in pairwise(rewards.values)) / math.sqrt(len(now))
        if best - now.mean < max(FALL * abs(best), chance) or not _others_gained(run, name):
            continue
        evidence = [
            f"mean reward of {name} {best:.3f} up to step {step}, {now.mean:.3f} in {now.span}",
            f"it has {shares[number]:.0%} of a batch",
        ]
        alone = Advice("or train it on its own, and see whether its reward asks for something contrary")
        yield "warning", f"{name} is forgotten while the others are learned", evidence, [_more(run, number), alone]


def _others_gained(run: RunRecord, name: str) -> bool:
    gains = []
    for other in run.environments:
        rewards = run.series(f"reward/{other}/mean")
        if other != name and len(rewards):
            gains.append(rewards.last(SMOOTH).mean - rewards.first(2).mean)
    return bool(gains) and sum(gains) > 0


def _shares(run: RunRecord) -> list[float]:
    names = run.environments
    weights = run.setting("buffer.env_ratios") or [
        float(run.setting(f"env.{i}.weight", 1.0)) for i in range(len(names))
    ]
    return [weight / sum(weights) for weight in weights]


def _more(run: RunRecord, number: int) -> Advice:
    ratios = run.setting("buffer.env_ratios")
    if ratios:
        raised = [2 * ratio if index == number else ratio for index, ratio in enumerate(ratios)]
        return run.change("buffer.env_ratios", raised, "more of each batch is then this environment's")
    weight = float(run.setting(f"env.{number}.weight", 1.0))
    return run.change(f"env.{number}.weight", 2 * weight, "more of each batch is then this environment's")
