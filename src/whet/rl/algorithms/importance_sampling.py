"""Plain importance sampling.

    loss = -A r

Unbiased off policy, with whatever variance the ratios have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from whet.rl.algorithm_config import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    return LossTerms(-inputs.advantages_N * inputs.log_ratio_N.exp())


ALGORITHM = Algorithm(name="importance_sampling", loss=loss)
