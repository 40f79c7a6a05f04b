"""Plain importance sampling.

    loss = -A r

Unbiased off policy, with whatever variance the ratios have. `tis_limit` C makes it truncated importance sampling
(Yao et al. 2025), -A min(r, C) grad log p; `mis_limit` makes it IcePop (Ring-1T, 2025, arXiv:2510.18855).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    # A token without advantage has no loss, whatever its ratio: 0 * inf is not 0.
    log_weight_N = inputs.log_weight_N.masked_fill(inputs.advantages_N == 0, 0.0)
    return LossTerms(-inputs.advantages_N * log_weight_N.exp())


ALGORITHM = Algorithm(name="importance_sampling", loss=loss, weighs_by_ratio=True)
