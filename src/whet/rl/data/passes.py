"""Several optimiser steps over one batch: which groups each learns from, and how probabilities are compared then.

`minibatches` M and `epochs` E of `[algorithm]`: in each of E epochs the groups are shuffled and divided into M equal
parts, and each part is an optimiser step. The policy version grows once, with the last of them.

`old_logprobs` says which policy the loss compares the new one with. `sampler`: the one that sampled, q. `recomputed`:
the learner's own before the first step of the batch, o, so that clips bound what these steps change and nothing else.
What separates o from q (older weights, other numerics) is then a constant factor of a token's loss, 1 unless limited:

    tis_limit C    min(o / q, C)                       token; tis_level: of the sequence, as product or geometric mean
    mis_limit C    0 where o / q is outside [1/C, C]   at mis_level

With `tis_limit` this is decoupled PPO (Hilton et al. 2021, arXiv:2110.00641, equation 3) with a bound on the factor;
its sequence levels are those of Liu, Li et al. 2025, When Speed Kills Stability (the `rollout_is` of verl). Pure.

A loss may choose tokens from all those of an optimiser step (`Algorithm.selects`), by advantages and by the learner's
probabilities before the batch; tokens that are distilled are no part of this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whet.rl.algorithms import Selection, find
from whet.rl.data.assembly import Assembled
from whet.rl.data.batch import PackedBatch
from whet.rl.sections.algorithm import AlgorithmConfig, LossConfig, RatioOf


@dataclass(frozen=True, slots=True, eq=False)
class LearningPass:
    """What one optimiser step learns from."""

    batch: PackedBatch
    tokens: NDArray[np.int64]  # where its tokens are in the whole batch
    divisor: float


def passes_over(
    assembled: Assembled, config: AlgorithmConfig, old_T: NDArray[np.float32], *, seed: tuple[int, int]
) -> Iterator[LearningPass]:
    """The optimiser steps of a batch, those left out that have no trained token.

    `old_T`: the learner's logprobs of trained tokens before the first of them. `seed`: the run's, and the step.
    """
    selects = find(config.loss, "loss").selects
    batch = compared_with(old_T, assembled.batch, config) if config.old_logprobs == "recomputed" else assembled.batch
    counts = [sum(of_rollouts) for of_rollouts in assembled.branches]
    sequences = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])  # of each group
    random = np.random.default_rng(seed)
    for _ in range(config.epochs):
        order = random.permutation(len(counts)) if config.minibatches > 1 else np.arange(len(counts))
        for part in np.array_split(order, config.minibatches):
            chosen = np.concatenate([sequences[group] for group in sorted(part)])
            own = batch.take(chosen.tolist()) if len(chosen) else None
            if own is not None and own.trained_tokens:
                tokens = batch.tokens_of(chosen.tolist())
                if selects is not None:
                    own = replace(own, selected=selected(selects, old_T[tokens], own, config, random))
                yield LearningPass(own, tokens, sum(assembled.divisors[group] for group in part))


def selected(
    selects: Selection, old_T: NDArray[np.float32], batch: PackedBatch, config: LossConfig, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Which tokens of one optimiser step its loss has chosen."""
    of_loss_T = batch.trained
    if batch.distilled is not None:
        of_loss_T = of_loss_T & ~batch.distilled[batch.sequence_of_token]
    selected_T = np.zeros(len(batch.ids), np.bool_)
    if of_loss_T.any():
        logprobs_N, advantages_N = (values_T[of_loss_T].astype(np.float64) for values_T in (old_T, batch.advantages))
        selected_T[of_loss_T] = selects(logprobs_N, advantages_N, config, random)
    return selected_T


def loss_of_passes(config: AlgorithmConfig) -> LossConfig:
    """The loss that a step of a batch uses: where limits are in its tokens' weights, without them."""
    if config.old_logprobs == "sampler":
        return config
    return config.model_copy(update={"tis_limit": None, "mis_limit": None})


def compared_with(old_T: NDArray[np.float32], batch: PackedBatch, config: LossConfig) -> PackedBatch:
    """The batch as if it had been sampled with `old_T`, its tokens weighed by what separates that from the sampler."""
    log_ratio_T = np.where(batch.trained, old_T - batch.logprobs, 0).astype(np.float64)
    weights_T = np.ones(len(batch.ids)) if batch.weights is None else batch.weights.astype(np.float64)
    if config.tis_limit is not None:
        weights_T *= np.exp(np.minimum(_at(config.tis_level, log_ratio_T, batch), math.log(config.tis_limit)))
    if config.mis_limit is not None:
        weights_T *= np.abs(_at(config.mis_level, log_ratio_T, batch)) <= math.log(config.mis_limit)
    limited = config.tis_limit is not None or config.mis_limit is not None
    weights = weights_T.astype(np.float32) if limited else batch.weights
    return replace(batch, logprobs=np.where(batch.trained, old_T, 0).astype(np.float32), weights=weights)


def _at(level: RatioOf, log_ratio_T: NDArray[np.float64], batch: PackedBatch) -> NDArray[np.float64]:
    """log r of each token, or what its sequence makes of those of its tokens."""
    if level == "token":
        return log_ratio_T
    of_B = np.zeros(batch.sequences)
    np.add.at(of_B, batch.sequence_of_token, log_ratio_T)
    if level == "geometric":
        of_B /= np.maximum(np.bincount(batch.sequence_of_token[batch.trained], minlength=batch.sequences), 1)
    return of_B[batch.sequence_of_token]
