"""Clip-Cov: PPO's surrogate without some of the few tokens that make entropy collapse.

    Cov(y)  = (log p(y) - mean log p) (A(y) - mean A)    means over the N tokens of an optimiser step
    loss    = 0 for cov_share N tokens, drawn from those with cov_low < Cov < cov_high;  PPO's for the others

To first order a policy-gradient step changes entropy by minus that covariance, most of which is in very few tokens:
likely ones of a large advantage. p is the learner before the batch, and at least one token is drawn where there is any
in the range. Source: Cui et al. 2025 (arXiv:2505.22617), section 4.2 and listing 1, where p is the learner now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, Array, LossInputs, LossTerms, ppo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    terms = ppo.loss(inputs, config)
    if inputs.selected_N is None or terms.clipped_N is None:
        return terms
    return LossTerms(terms.loss_N.masked_fill(inputs.selected_N, 0.0), terms.clipped_N | inputs.selected_N)


def selects(
    logprobs_N: Array, advantages_N: Array, config: LossConfig, random: np.random.Generator
) -> NDArray[np.bool_]:
    import numpy as np

    cov_N = covariances(logprobs_N, advantages_N)
    able = np.flatnonzero((cov_N > config.cov_low) & (cov_N < config.cov_high))
    chosen = random.choice(able, min(count_of(config, cov_N), len(able)), replace=False)
    selected_N: NDArray[np.bool_] = np.isin(np.arange(len(cov_N)), chosen)
    return selected_N


def covariances(logprobs_N: Array, advantages_N: Array) -> Array:
    """What each token adds to the covariance of log p and A, times N."""
    covariances_N: Array = (logprobs_N - logprobs_N.mean()) * (advantages_N - advantages_N.mean())
    return covariances_N


def count_of(config: LossConfig, values_N: Array) -> int:
    """How many of N tokens are chosen: one at least."""
    assert config.cov_share is not None, f"{config.loss} chooses no tokens"
    return max(1, int(config.cov_share * len(values_N)))


ALGORITHM = Algorithm(
    name="clip_cov",
    loss=loss,
    loss_constants={**ppo.CONSTANTS, "cov_share": 2e-4, "cov_low": 1.0, "cov_high": 5.0},
    weighs_by_ratio=True,
    selects=selects,
)
