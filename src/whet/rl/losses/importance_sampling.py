"""Plain importance sampling.

    loss = -A r

Unbiased off policy, with whatever variance the ratios have.
"""

from whet.rl.losses.config import LossConfig
from whet.rl.losses.terms import LossInputs, LossTerms


def importance_sampling(inputs: LossInputs, config: LossConfig) -> LossTerms:
    return LossTerms(-inputs.advantages_N * inputs.log_ratio_N.exp())
