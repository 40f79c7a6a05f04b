"""What may be added to any loss: a KL to a reference policy, and an entropy bonus. Per token, never divided.

With p the learner's probability of the token that was taken and f that of the reference, x = log f - log p:

    k1   log p - log f           unbiased as a value, and negative for many tokens
    k2   x^2 / 2                 biased; its gradient, (log p - log f) grad log p, is that of the KL on policy
    k3   exp(x) - 1 - x          unbiased as a value, never negative, little variance

Differentiated as it stands k1 would have a gradient of mean zero on policy. It is therefore applied as a penalty on the
token's reward would be, by the score function: the value is k1, the gradient (log p - log f) grad log p.
Sources: Schulman 2020, Approximating KL Divergence (the three estimators); Shao et al. 2024 (arXiv:2402.03300; k3 in
GRPO's loss).
"""

from __future__ import annotations

from torch import Tensor

from whet.rl.losses.config import KLEstimator


def kl_to_reference(logprobs_N: Tensor, reference_logprobs_N: Tensor, estimator: KLEstimator) -> Tensor:
    """An estimate of KL(learner || reference) for each of N tokens."""
    if estimator == "k1":
        gap_N = (logprobs_N - reference_logprobs_N).detach()
        return gap_N + gap_N * (logprobs_N - logprobs_N.detach())
    x_N = reference_logprobs_N - logprobs_N
    return 0.5 * x_N.square() if estimator == "k2" else x_N.expm1() - x_N
