"""What learning costs elsewhere: held-out tasks, other metrics of the rubric, other environments of a mix."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from whet.rl.doctor.changes import calmer
from whet.rl.doctor.finding import Advice, DoctorFinding
from whet.rl.doctor.record import MIN_STEPS, MetricSeries, Row, RunRecord
from whet.rl.monitors.protocol import EvalReport
from whet.rollouts.totals import EvalScore

OVERFITTING = "overfitting"
HELD_OUT_FALLS = "held-out-falls"
RISE = 0.05
"""Rise of the training reward from which it counts as rising while held-out tasks get worse."""
HELD_OUT_CHANCE = 2.0
"""Multiples of the deviation of a difference of two means; rewards of 0 and 1 vary by 0.5 at most."""


def overfitting(run: RunRecord) -> Iterator[DoctorFinding]:
    """Held-out tasks get worse: what is learned does not carry over, or steps are so large that something is lost."""
    reports = [report for report in run.data.evaluations if report.scores]
    rewards = run.series("reward/mean")
    if len(reports) < 2 or not len(rewards):
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
        yield _held_out_finding(run, last.environment, rewards, held_out, step)


def _held_out_finding(
    run: RunRecord, environment: str, rewards: MetricSeries, held_out: str, step: int
) -> DoctorFinding:
    before, now = rewards.first(3), rewards.last(3)
    evidence = [f"training reward {before.mean:.3f} in {before.span}, {now.mean:.3f} in {now.span}", held_out]
    if now.mean - before.mean < RISE:
        return DoctorFinding(
            HELD_OUT_FALLS, "error", f"held-out tasks of {environment} get worse", evidence, calmer(run)
        )
    changes = [Advice("more and more varied training tasks, nearer to those that count")]
    if step:
        changes.append(run.change("max_steps", step, "stop where held-out tasks were at their best"))
    if not run.setting("algorithm.kl_coef", 0.0):
        changes.append(run.change("algorithm.kl_coef", 0.01, "holds the policy to what it began with"))
    what = f"training rewards rise while held-out tasks of {environment} get worse"
    return DoctorFinding(OVERFITTING, "warning", what, evidence, changes)


def _best_score(reports: list[EvalReport], last: EvalScore) -> tuple[EvalScore | None, int]:
    """The best earlier score of the same environment, sampled in the same way, and its step."""
    same = [
        (score, report.step)
        for report in reports
        for score in report.scores
        if (score.environment, score.sampling) == (last.environment, last.sampling) and math.isfinite(score.reward)
    ]
    return max(same, key=lambda found: found[0].reward, default=(None, 0))


def _chance(one: EvalScore, other: EvalScore) -> float:
    return HELD_OUT_CHANCE * 0.5 * math.sqrt(1 / max(1, one.rollouts) + 1 / max(1, other.rollouts))


HACKING = "reward-hacking"
AGREED = 0.3
"""Correlation with the reward in the first step from which a metric is taken for a witness."""
ROLLOUTS = 16
"""Rollouts below which a correlation is chance."""
MOVED = 0.5
"""Deviations (over rollouts of the first step) by which the reward has risen, and the witness fallen."""


def hacking(run: RunRecord) -> Iterator[DoctorFinding]:
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
            yield from _witness(run, environment, name, rows)


def _witness(run: RunRecord, environment: str, name: str, rows: list[Row]) -> Iterator[DoctorFinding]:
    pairs = [
        (float(row["reward"]), float(row["metrics"][name]))
        for row in rows
        if (row.get("metrics") or {}).get(name) is not None
    ]
    values = run.series(f"reward/{environment}/{name}")
    if len(pairs) < ROLLOUTS or len(values) < MIN_STEPS:
        return
    agreed = correlation(*zip(*pairs, strict=True))
    now = values.last(MIN_STEPS)
    lost = values.values[0] - now.mean
    if agreed < AGREED or lost < MOVED * _spread([value for _, value in pairs]):
        return
    rewards = run.series(f"reward/{environment}/mean")
    yield DoctorFinding(
        HACKING,
        "warning",
        f"the reward of {environment} rises while its {name} falls",
        [
            f"mean reward {rewards.values[0]:.3f} in step {rewards.steps[0]}, "
            f"{rewards.last(MIN_STEPS).mean:.3f} in {now.span}",
            f"{name} {values.values[0]:.3f} then, {now.mean:.3f} now; in step {values.steps[0]} the two agreed "
            f"(correlation {agreed:.2f} over {len(pairs)} rollouts)",
        ],
        [
            Advice(
                f"look at the best rewarded rollouts: what do they do instead? Then give {name} weight in the rubric"
            ),
            *(
                []
                if run.setting("algorithm.kl_coef", 0.0)
                else [run.change("algorithm.kl_coef", 0.01, "holds the policy to what it began with")]
            ),
        ],
    )


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's; 0 where one of the two does not vary."""
    if _spread(left) == 0 or _spread(right) == 0:
        return 0.0
    return statistics.correlation(left, right)


def _spread(values: Sequence[float]) -> float:
    spread = statistics.pstdev(values)
    return spread if math.isfinite(spread) else 0.0


FORGETTING = "forgetting"
SMOOTH = 5
"""Steps whose mean is compared; 2 in a run of fewer than ten."""
FALL = 0.3
"""Share of its best that the environment has lost."""
CHANCE = 4.0
"""Multiples of how much its reward changes from a step to the next."""


def forgetting(run: RunRecord) -> Iterator[DoctorFinding]:
    """One environment of a mix gets worse while the others get better."""
    names = run.environments
    if len(names) < 2:
        return
    shares = _shares(run)
    for number, name in enumerate(names):
        rewards = run.series(f"reward/{name}/mean")
        if len(rewards) < MIN_STEPS:
            continue
        levels = rewards.means(SMOOTH if len(rewards) >= 2 * SMOOTH else 2)
        best = max(range(len(levels)), key=lambda index: levels.values[index])
        now = rewards.last(SMOOTH if len(rewards) >= 2 * SMOOTH else 2)
        lost = levels.values[best] - now.mean
        chance = CHANCE * _jitter(rewards) / math.sqrt(len(now))
        if lost < max(FALL * abs(levels.values[best]), chance) or not _others_gained(run, name):
            continue
        yield DoctorFinding(
            FORGETTING,
            "warning",
            f"{name} is forgotten while the others are learned",
            [
                f"mean reward of {name} {levels.values[best]:.3f} up to step {levels.steps[best]}, "
                f"{now.mean:.3f} in {now.span}",
                f"it has {shares[number]:.0%} of a batch",
            ],
            [
                _more(run, number),
                Advice("or train it on its own, and see whether its reward asks for something contrary"),
            ],
        )


def _jitter(rewards: MetricSeries) -> float:
    """The typical change from one step to the next: its few groups of a batch vary more than the whole batch."""
    return statistics.median(abs(b - a) for a, b in zip(rewards.values, rewards.values[1:], strict=False))


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
