"""The scores of an evaluation under the names of docs/training.md, for trackers and `whet train metrics`. Pure.

eval/version                        policy version that was evaluated
eval/<env>/reward, pass@k, ...      at the evaluation's own temperature
eval/<env>/greedy/reward, ...       greedily as well
eval/<env>/<member>/reward, ...     of each member of an EnvGroup
"""

from __future__ import annotations

from whet.rl.monitors.protocol import EvalReport
from whet.rollouts.totals import EvalScore

GREEDY = "greedy"


def evaluation_metrics(report: EvalReport) -> dict[str, float]:
    """One flat dict of everything that was scored; a reward is NaN where every rollout failed."""
    scores = [one for score in report.scores for one in (score, *score.members)]
    sampled = {score.environment for score in scores if score.sampling != GREEDY}
    found = {"eval/version": float(report.version)}
    for score in scores:
        also_greedy = score.sampling == GREEDY and score.environment in sampled
        prefix = f"eval/{score.environment}/greedy" if also_greedy else f"eval/{score.environment}"
        found |= {f"{prefix}/{name}": value for name, value in _values(score).items()}
    return found


def _values(score: EvalScore) -> dict[str, float]:
    return {
        **score.metrics,
        **{f"pass@{k}": value for k, value in score.pass_at_k.items()},
        "reward": score.reward,
        "errored_frac": score.errors / score.rollouts if score.rollouts else 0.0,
    }
