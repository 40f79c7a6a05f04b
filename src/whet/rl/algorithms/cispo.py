"""CISPO: REINFORCE with a clipped importance weight. Clipping limits a token's weight but never silences it.

    loss = -stopgrad(clip(r, 1 - eps_low, 1 + eps_high)) A log p

With eps_low = 1, the default, there is no lower bound, since ratios are above 0. Source: MiniMax-M1, 2025
(arXiv:2506.13585), which has no lower bound and tunes the upper one. ScaleRL (arXiv:2510.13786) finds the same result
for largest weights of 4 to 8; here it is 5. It is truncated importance sampling with C = 1 + eps_high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    ratio_N = inputs.log_ratio_N.detach().exp()
    weight_N = ratio_N.clamp(*config.ratio_bounds)
    return LossTerms(-weight_N * inputs.advantages_N * inputs.logprobs_N, weight_N != ratio_N)


ALGORITHM = Algorithm(name="cispo", loss=loss, loss_constants={"eps_low": 1.0, "eps_high": 4.0})
