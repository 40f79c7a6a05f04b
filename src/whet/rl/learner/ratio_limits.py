"""Limits on the importance ratios of a batch, whatever its loss: what `[algorithm] tis_limit` and `mis_limit` do.

    r = p / q                        a token under the learner over the same under the sampler
    tis_limit T                      a token weighs min(r, T) at most: `LossInputs.log_weight_N`
    mis_limit C, mis_level token     tokens with r outside [1/C, C] carry no loss
                sequence             tokens of sequences whose product of r is outside carry none
                geometric            the same of the geometric mean of r, whatever the length

A token that carries no loss is kept from the loss function, so that an infinite ratio does no harm. It still counts in
the number of trained tokens that the batch is divided by, as in IcePop, and as tokens do that the loss itself drops.
What `kl_coef` and `entropy_coef` add to a loss stays.

Sources: TIS, Yao et al. 2025 (https://fengyao.notion.site/off-policy-rl). Masked tokens: IcePop, Ring-1T, 2025
(arXiv:2510.18855), there with bounds that need not be inverse to each other. Masked sequences: Liu, Li et al. 2025,
When Speed Kills Stability (https://richardli.xyz/rl-collapse); levels are named as in verl's rollout correction.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from whet.rl.algorithms import LossFunction, LossInputs, LossTerms
from whet.rl.sections.algorithm import LossConfig, RatioOf


def limited(function: LossFunction, inputs: LossInputs, config: LossConfig) -> tuple[LossTerms, dict[str, float]]:
    """The loss within the limits of `config`, and the number of tokens that each limit changed: `truncated`, `masked`.

    `clipped_N` of the terms has these tokens too. Without limits the terms are those of `function`, and no number.
    """
    if config.mis_limit is None:
        return _truncated(function, inputs, config)
    kept_N = _ratios(inputs, config.mis_level).abs() <= math.log(config.mis_limit)
    terms, counts = _truncated(function, _only(inputs, kept_N), config)
    loss_N = torch.zeros_like(inputs.logprobs_N).masked_scatter(kept_N, terms.loss_N)
    clipped_N = ~kept_N
    if terms.clipped_N is not None:
        clipped_N = clipped_N.masked_scatter(kept_N, terms.clipped_N)
    return LossTerms(loss_N, clipped_N), {**counts, "masked": float((~kept_N).sum().item())}


def _truncated(function: LossFunction, inputs: LossInputs, config: LossConfig) -> tuple[LossTerms, dict[str, float]]:
    if config.tis_limit is None:
        return function(inputs, config), {}
    terms = function(replace(inputs, tis_limit=config.tis_limit), config)
    truncated_N = inputs.log_ratio_N.detach() > math.log(config.tis_limit)
    if terms.clipped_N is not None:  # what the loss drops or cuts itself has no weight to truncate
        truncated_N = truncated_N & ~terms.clipped_N
    clipped_N = truncated_N if terms.clipped_N is None else truncated_N | terms.clipped_N
    return replace(terms, clipped_N=clipped_N), {"truncated": float(truncated_N.sum().item())}


def _only(inputs: LossInputs, kept_N: Tensor) -> LossInputs:
    return LossInputs(
        logprobs_N=inputs.logprobs_N[kept_N],
        sampled_logprobs_N=inputs.sampled_logprobs_N[kept_N],
        advantages_N=inputs.advantages_N[kept_N],
        sequence_N=inputs.sequence_N[kept_N],
        group_N=None if inputs.group_N is None else inputs.group_N[kept_N],
        selected_N=None if inputs.selected_N is None else inputs.selected_N[kept_N],
    )


def _ratios(inputs: LossInputs, of: RatioOf) -> Tensor:
    """log r of each token, or what a sequence makes of those of its tokens."""
    log_ratio_N = inputs.log_ratio_N.detach()
    if of == "token":
        return log_ratio_N
    sequences, sequence_N = inputs.sequence_N.unique(return_inverse=True)
    totals_B = log_ratio_N.new_zeros(len(sequences)).index_add(0, sequence_N, log_ratio_N)
    if of == "geometric":
        totals_B = totals_B / sequence_N.bincount(minlength=len(sequences))
    return totals_B[sequence_N]
