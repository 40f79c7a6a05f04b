"""CISPO: REINFORCE with a clipped importance weight. Clipping limits a token's weight but never silences it.

    loss = -stopgrad(clip(r, 1 - eps_low, 1 + eps_high)) A log p

With eps_low = 1, the default, there is no lower bound, since ratios are above 0. Source: MiniMax-M1, 2025
(arXiv:2506.13585).
"""

from whet.rl.losses.config import LossConfig
from whet.rl.losses.terms import LossInputs, LossTerms


def cispo(inputs: LossInputs, config: LossConfig) -> LossTerms:
    ratio_N = inputs.log_ratio_N.detach().exp()
    weight_N = ratio_N.clamp(*config.ratio_bounds)
    return LossTerms(-weight_N * inputs.advantages_N * inputs.logprobs_N, weight_N != ratio_N)
