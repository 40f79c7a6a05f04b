"""PPO's clipped surrogate, which is also GRPO's.

    loss = -min(A r, A clip(r, 1 - eps_low, 1 + eps_high))

Sources: Schulman et al. 2017 (arXiv:1707.06347); with group advantages Shao et al. 2024 (arXiv:2402.03300); separate
bounds from DAPO, Yu et al. 2025 (arXiv:2503.14476).
"""

import torch

from whet.rl.losses.config import LossConfig
from whet.rl.losses.terms import LossInputs, LossTerms


def ppo(inputs: LossInputs, config: LossConfig) -> LossTerms:
    ratio_N = inputs.log_ratio_N.exp()
    plain_N = inputs.advantages_N * ratio_N
    cut_N = inputs.advantages_N * ratio_N.clamp(*config.ratio_bounds)
    return LossTerms(-torch.minimum(plain_N, cut_N), cut_N < plain_N)
