"""Pairs of answers, the better one preferred: direct preference optimisation, of stored answers and of fresh groups.

With p the model, f the reference, c the better answer and r the worse one, the loss of a pair is

    margin = beta * ((log p(c) - log f(c)) - (log p(r) - log f(r)))
    loss   = -log sigmoid(margin)

where log p of an answer is the sum over its trained tokens.
Source: Rafailov et al. 2023, Direct Preference Optimization (arXiv:2305.18290, equation 7).

The gradient is -beta sigmoid(-margin) (grad log p(c) - grad log p(r)): a cross entropy in which each answer weighs
beta sigmoid(-margin), the worse one negatively. So the margins of all pairs are computed first, without gradients, and
the two answers of a pair need not be in one micro-batch or on one rank. Pure.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from whet.rl.algorithms import Array
from whet.rl.data.assembly import Assembled
from whet.rl.data.batch import PackedBatch


def margins_of(
    batch: PackedBatch, ratio_T: Array, pair_B: NDArray[np.int64], sign_B: Array, count: int, beta: float
) -> Array:
    """Of `count` pairs. `ratio_T`: log p - log f of trained tokens, 0 of others; of each sequence its pair, and 1 where
    it is of the better, -1 of the worse answer, 0 of none."""
    margins_P, of_token = np.zeros(count), batch.sequence_of_token
    np.add.at(margins_P, pair_B[of_token], beta * sign_B[of_token] * ratio_T)
    return margins_P


def weights_of(margins_P: Array, pair_B: NDArray[np.int64], sign_B: Array, beta: float) -> Array:
    """What each sequence weighs in the gradient of the summed losses."""
    weights_B: Array = beta * sign_B / (1 + np.exp(margins_P))[pair_B]
    return weights_B


def losses(margins_P: Array) -> Array:
    """-log sigmoid(margin)"""
    return np.logaddexp(0, -margins_P)


def preference_metrics(margins_P: Array) -> dict[str, float]:
    return {"preference/margin": float(margins_P.mean()), "preference/accuracy": float((margins_P > 0).mean())}


def with_preferences(assembled: Assembled, ratio_T: Array, beta: float) -> tuple[Assembled, float]:
    """The batch for the loss `dpo`, which is divided by its pairs, and the sum of their losses; `ratio_T` as above.

    A pair of a group is the rollout of the greatest and that of the least advantage among those with trained tokens, of
    equal ones the first; a group of equal advantages has none.
    """
    batch, first, chosen = assembled.batch, 0, 0
    trained_B = np.bincount(batch.sequence_of_token[batch.trained], minlength=batch.sequences)
    pair_B, sign_B = np.zeros(batch.sequences, np.int64), np.zeros(batch.sequences)
    divisors, heads = list[float](), list[int]()
    spans = list[list[slice]]()  # of each group, the sequences of its rollouts
    for counts, advantages_G in zip(assembled.branches, assembled.advantages, strict=True):
        ends = (first + np.cumsum(counts)).tolist()
        spans.append([slice(end - count, end) for end, count in zip(ends, counts, strict=True)])
        first += sum(counts)
        able = [index for index, span in enumerate(spans[-1]) if trained_B[span].any()]
        better = max(able, key=lambda index: (advantages_G[index], -index), default=0)
        worse = min(able, key=lambda index: (advantages_G[index], index), default=0)
        divisors.append(float(advantages_G[better] > advantages_G[worse]))
        if divisors[-1]:
            for rollout, sign in ((better, 1.0), (worse, -1.0)):
                pair_B[spans[-1][rollout]], sign_B[spans[-1][rollout]] = chosen, sign
            heads.append(spans[-1][better].start)
            chosen += 1
    if not chosen:  # nothing is learned
        pair_B, divisors[0] = np.zeros_like(pair_B), 1.0
    margins_P = margins_of(batch, ratio_T, pair_B, sign_B, max(chosen, 1), beta)
    weights_B = weights_of(margins_P, pair_B, sign_B, beta)
    rows = [[float(weights_B[span].sum()) / max(span.stop - span.start, 1) for span in of_group] for of_group in spans]
    preferred = replace(batch, advantages=(weights_B[batch.sequence_of_token] * batch.trained).astype(np.float32))
    shaping = assembled.shaping | (preference_metrics(margins_P) if chosen else {})
    weights = 1.0 if batch.weights is None else batch.weights[batch.cu_seqlens[heads]]
    loss = float((weights * losses(margins_P)[:chosen]).sum())
    return replace(assembled, batch=preferred, advantages=rows, divisors=divisors, shaping=shaping), loss
