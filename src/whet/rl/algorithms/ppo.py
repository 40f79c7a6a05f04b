"""PPO's clipped surrogate. GRPO's loss is the same function (`grpo.py`): the two differ in their advantages only.

    loss = -min(A r, A clip(r, 1 - eps_low, 1 + eps_high))

The clip bounds no weight where A < 0: there `tis_limit` does.
Sources: Schulman et al. 2017 (arXiv:1707.06347), and its bounds; separate bounds from DAPO, Yu et al. 2025
(arXiv:2503.14476).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from whet.rl.algorithm_config import LossConfig

CONSTANTS = {"eps_low": 0.2, "eps_high": 0.2}


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    ratio_N = inputs.log_weight_N.exp()
    plain_N = inputs.advantages_N * ratio_N
    cut_N = inputs.advantages_N * ratio_N.clamp(*config.ratio_bounds)
    return LossTerms(-plain_N.minimum(cut_N), cut_N < plain_N)


ALGORITHM = Algorithm(name="ppo", loss=loss, loss_constants=CONSTANTS, weighs_by_ratio=True)
