"""Cross entropy: imitate the trained tokens. For demonstrations, which nobody sampled; the advantage is a weight.

    loss = -A log p

The plain policy gradient where the advantage is one.
"""

from whet.rl.losses.config import LossConfig
from whet.rl.losses.terms import LossInputs, LossTerms


def cross_entropy(inputs: LossInputs, config: LossConfig) -> LossTerms:
    return LossTerms(-inputs.advantages_N * inputs.logprobs_N)
