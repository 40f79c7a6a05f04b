"""Cross entropy: imitate the trained tokens. For demonstrations, which no policy sampled; the advantage is a weight.

    loss = -A log p

The plain policy gradient where the advantage is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.rl.algorithms import Algorithm, LossInputs, LossTerms

if TYPE_CHECKING:
    from whet.rl.sections.algorithm import LossConfig


def loss(inputs: LossInputs, config: LossConfig) -> LossTerms:
    return LossTerms(-inputs.advantages_N * inputs.logprobs_N)


ALGORITHM = Algorithm(name="cross_entropy", loss=loss, compares_with_sampler=False)
