"""What a loss is given and what it gives back. All tensors are flat over N trained tokens; there is no padding to mask.

    r = exp(logprobs - sampled_logprobs)    probability of a token under the learner over that under the sampler
    A                                       the token's advantage

A loss returns one value per token and never divides: the batch as a whole is divided by its number of trained tokens
at the optimiser step, so packing, micro-batches and ranks do not change the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from whet.rl.losses.config import LossConfig


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    logprobs_N: Tensor  # of the learner, with gradient
    sampled_logprobs_N: Tensor
    advantages_N: Tensor
    sequence_N: Tensor  # which sequence a token is part of; whole sequences only

    @property
    def log_ratio_N(self) -> Tensor:
        return self.logprobs_N - self.sampled_logprobs_N


@dataclass(frozen=True, slots=True, eq=False)
class LossTerms:
    loss_N: Tensor
    clipped_N: Tensor | None = None  # bool: the token was dropped, or its ratio was cut; None where a loss does neither


LossFunction: TypeAlias = Callable[[LossInputs, LossConfig], LossTerms]
