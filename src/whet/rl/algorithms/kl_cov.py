"""KL-Cov: the policy gradient, with the few tokens that make entropy collapse held to where they were.

    loss = -A r + cov_kl |log r|    for the cov_share N tokens of the largest covariance (`clip_cov.py`)
           -A r                     for the others

|log r| is the paper's estimate of the KL; with one optimiser step on a synchronous batch r is 1, where it has no
gradient. Source: Cui et al. 2025 (arXiv:2505.22617), section 4.2 and listing 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, Array, LossInputs, LossTerms, importance_sampling
from whet.rl.algorithms.clip_cov import count_of, covariances

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    loss_N = importance_sampling.loss(inputs, config).loss_N
    if inputs.selected_N is None:
        return LossTerms(loss_N)
    held_N = config.cov_kl * inputs.log_ratio_N.abs()
    return LossTerms(loss_N + held_N.masked_fill(~inputs.selected_N, 0.0))


def selects(
    logprobs_N: Array, advantages_N: Array, config: LossConfig, random: np.random.Generator
) -> NDArray[np.bool_]:
    import numpy as np

    cov_N = covariances(logprobs_N, advantages_N)
    largest = np.argsort(-cov_N, kind="stable")[: count_of(config, cov_N)]
    selected_N: NDArray[np.bool_] = np.isin(np.arange(len(cov_N)), largest)
    return selected_N


ALGORITHM = Algorithm(
    name="kl_cov",
    loss=loss,
    loss_constants={"cov_share": 2e-3, "cov_kl": 1.0},
    weighs_by_ratio=True,
    selects=selects,
)
