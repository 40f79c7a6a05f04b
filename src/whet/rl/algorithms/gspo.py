"""GSPO: PPO's surrogate with one ratio for the whole sequence, its tokens' geometric mean.

    s    = exp(mean over the sequence of (log p - log q))
    loss = -min(A s, A clip(s, 1 - eps_low, 1 + eps_high))    for each of its tokens

Every token carries its sequence's value. The paper averages over sequences, which is `aggregation = "sequence_mean"`.
Source: Zheng et al. 2025 (arXiv:2507.18071); its section 5.1 has the bounds: one ratio for a sequence moves far less
than those of its tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms
from whet.rl.algorithms.ppo import clipped_surrogate

if TYPE_CHECKING:
    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    sequences, sequence_N = inputs.sequence_N.unique(return_inverse=True)
    log_ratio_N = inputs.log_ratio_N
    sums_B = log_ratio_N.new_zeros(len(sequences)).index_add(0, sequence_N, log_ratio_N)
    mean_N = (sums_B / sequence_N.bincount(minlength=len(sequences)))[sequence_N]
    return clipped_surrogate(mean_N, inputs.advantages_N, config.ratio_bounds)


ALGORITHM = Algorithm(name="gspo", loss=loss, loss_constants={"eps_low": 3e-4, "eps_high": 4e-4})
