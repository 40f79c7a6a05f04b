"""DRO: regression towards the policy that the advantages imply, held to the sampler by a square.

    loss = -(A log p - beta / 2 (log r)^2)

Source: Richemond et al. 2024, Offline Regularised Reinforcement Learning (arXiv:2405.19107), with the advantage in
place of reward minus value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    pull_N = 0.5 * config.dro_beta * inputs.log_ratio_N.square()
    return LossTerms(pull_N - inputs.advantages_N * inputs.logprobs_N)


ALGORITHM = Algorithm(name="dro", loss=loss, loss_constants={"dro_beta": 0.1})
