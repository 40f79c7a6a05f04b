"""How the tokens of a batch add up to one loss: a weight for each token, and what their sum is divided by.

    token_mean      1                             / trained tokens of the batch   the default
    group_mean      1 / tokens of its group       / groups                        DAPO, arXiv:2503.14476, equation 8
    sequence_mean   1 / tokens of its rollout     / rollouts                      GRPO, arXiv:2402.03300, equation 3
    constant        1 / aggregation_length        / rollouts                      Dr. GRPO, arXiv:2503.20783

Tokens are those that are trained; rollouts and groups without any count nowhere. Weights and divisor depend on groups
alone, which a batch and its parts have as a whole: packing, micro-batches, parts and ranks change neither. Pure.

Where environments are learned by different algorithms, each is aggregated alone, and the loss is the sum of all,
weighed by `loss_weight`; otherwise `loss_weight` multiplies tokens of one aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whet.rl.sections.algorithm import AlgorithmConfig


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Of some groups of a batch: the weight of each rollout's tokens, and each group's share of the divisor."""

    weights: list[list[float]]
    divisors: list[float]


def aggregate_each(
    tokens: Sequence[Sequence[int]], environments: Sequence[str], config: AlgorithmConfig
) -> Aggregation:
    """Each environment's loss as if it were alone; `environments`: that of each group."""
    weights: list[list[float]] = [[]] * len(tokens)
    for name in dict.fromkeys(environments):
        own = [number for number, other in enumerate(environments) if other == name]
        alone = aggregate([tokens[number] for number in own], config)
        divisor = sum(alone.divisors) or 1.0
        for number, weights_G in zip(own, alone.weights, strict=True):
            weights[number] = [weight / divisor for weight in weights_G]
    return Aggregation(weights, [1 / len(tokens)] * len(tokens))


def aggregate(tokens: Sequence[Sequence[int]], config: AlgorithmConfig) -> Aggregation:
    """`tokens`: of each rollout of each group, how many are trained."""
    rollouts = [float(sum(count > 0 for count in group)) for group in tokens]
    match config.aggregation:
        case "token_mean":
            return Aggregation([[1.0] * len(group) for group in tokens], [float(sum(group)) for group in tokens])
        case "group_mean":
            weights = [[1 / max(sum(group), 1)] * len(group) for group in tokens]
            return Aggregation(weights, [float(sum(group) > 0) for group in tokens])
        case "sequence_mean":
            return Aggregation([[1 / max(count, 1) for count in group] for group in tokens], rollouts)
        case "constant":
            assert config.aggregation_length is not None, "checked by the config"
            return Aggregation([[1 / config.aggregation_length] * len(group) for group in tokens], rollouts)
