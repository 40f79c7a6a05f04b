"""Plain importance sampling: unbiased off policy, with whatever variance the ratios have.

    loss = -A r
"""

from whet.rl.losses.config import LossConfig
from whet.rl.losses.terms import LossInputs, LossTerms


def importance_sampling(inputs: LossInputs, config: LossConfig) -> LossTerms:
    return LossTerms(-inputs.advantages_N * inputs.log_ratio_N.exp())
