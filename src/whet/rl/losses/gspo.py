"""GSPO: PPO's surrogate with one ratio for the whole sequence, its tokens' geometric mean.

    s    = exp(mean over the sequence of (log p - log q))
    loss = -min(A s, A clip(s, 1 - eps_low, 1 + eps_high))    for each of its tokens

The paper averages over sequences; here every token carries its sequence's value, so that, as in the other losses, all
trained tokens of a batch weigh the same. Source: Zheng et al. 2025 (arXiv:2507.18071).
"""

import torch

from whet.rl.losses.config import LossConfig
from whet.rl.losses.terms import LossInputs, LossTerms


def gspo(inputs: LossInputs, config: LossConfig) -> LossTerms:
    sequences, sequence_N = torch.unique(inputs.sequence_N, return_inverse=True)
    log_ratio_N = inputs.log_ratio_N
    sums_B = log_ratio_N.new_zeros(len(sequences)).index_add(0, sequence_N, log_ratio_N)
    ratio_N = (sums_B / sequence_N.bincount(minlength=len(sequences))).exp()[sequence_N]
    plain_N = inputs.advantages_N * ratio_N
    cut_N = inputs.advantages_N * ratio_N.clamp(*config.ratio_bounds)
    return LossTerms(-torch.minimum(plain_N, cut_N), cut_N < plain_N)
