"""PPO's clipped surrogate. GRPO's loss is the same function (`grpo.py`): the two differ in their advantages only.

    loss = -min(A r, A clip(r, 1 - eps_low, 1 + eps_high))

The clip bounds no weight where A < 0: there `tis_limit` does. Where A >= 0 a token above the bound has gradient 0,
also where its ratio would overflow: log r is bounded before `exp`, since 0 times infinity is not 0.
Sources: Schulman et al. 2017 (arXiv:1707.06347), and its bounds; separate bounds from DAPO, Yu et al. 2025
(arXiv:2503.14476).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from torch import Tensor

    from whet.rl.sections.algorithm import LossConfig

LARGEST_LOG_RATIO = 80.0
"""Of a token that the upper bound silences: exp(80) is far above every bound, and finite in float32."""

CONSTANTS = {"eps_low": 0.2, "eps_high": 0.2}


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    return clipped_surrogate(inputs.log_weight_N, inputs.advantages_N, config.ratio_bounds)


def clipped_surrogate(log_ratio_N: Tensor, advantages_N: Tensor, bounds: tuple[float, float]) -> LossTerms:
    """The formula above, of any log r; `bounds` are those of r."""
    largest = max(LARGEST_LOG_RATIO, math.log(bounds[1]))
    ratio_N = log_ratio_N.where(advantages_N < 0, log_ratio_N.clamp(max=largest)).exp()
    plain_N, cut_N = advantages_N * ratio_N, advantages_N * ratio_N.clamp(*bounds)
    return LossTerms(-plain_N.minimum(cut_N), cut_N < plain_N)


ALGORITHM = Algorithm(name="ppo", loss=loss, loss_constants=CONSTANTS, weighs_by_ratio=True)
