"""Direct preference optimisation on fresh groups: the best rollout of a group becomes likelier than the worst one.

    loss = -A log p

A of a token is that of its rollout, and 0 of all but two of a group; `rl/data/preferences.py` makes it so that the sum
over a batch has the gradient of the mean of -log sigmoid(margin) over its pairs.
Sources: Rafailov et al. 2023, Direct Preference Optimization (arXiv:2305.18290, equation 7); Guo et al. 2024, Direct
Language Model Alignment from Online AI Feedback (arXiv:2402.04792; pairs of the policy's own rollouts).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    return LossTerms(-inputs.advantages_N * inputs.logprobs_N)


ALGORITHM = Algorithm(name="dpo", loss=loss, loss_constants={"dpo_beta": 0.1})
