"""Masked importance sampling, the default: the plain policy gradient, without the tokens that already moved far.

    loss = -A r [kept] + penalty (log r)^2

p and q are the token's probabilities under learner and sampler. A token is dropped where p - q > threshold and A > 0
(it is already much likelier), or p - q < -threshold and A < 0. Comparing probabilities, not ratios, leaves rare
tokens alone, whose ratios are large by noise; `tis_limit` bounds what those weigh. The penalty also holds the dropped
tokens near the sampler.
Source: the default loss of prime-rl (Prime Intellect), after DPPO's binary total-variation mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    log_ratio_N = inputs.log_ratio_N
    moved_N = inputs.logprobs_N.detach().exp() - inputs.sampled_logprobs_N.exp()
    advantages_N = inputs.advantages_N
    dropped_N = ((moved_N > config.mask_threshold) & (advantages_N > 0)) | (
        (moved_N < -config.mask_threshold) & (advantages_N < 0)
    )
    # Where, not times: the ratio of a token that is dropped or has no advantage may be infinite, and 0 * inf is not 0.
    silent_N = dropped_N | (advantages_N == 0)
    surrogate_N = -advantages_N * inputs.log_weight_N.masked_fill(silent_N, 0.0).exp()
    policy_N = surrogate_N.masked_fill(dropped_N, 0.0)
    return LossTerms(policy_N + config.mask_penalty * log_ratio_N.square(), dropped_N)


ALGORITHM = Algorithm(
    name="masked_is",
    loss=loss,
    loss_constants={"mask_threshold": 0.2, "mask_penalty": 1e-3},
    weighs_by_ratio=True,
)
