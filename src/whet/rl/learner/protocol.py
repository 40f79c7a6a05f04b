"""`Learner`: forward/backward, optimiser step, publish, save, load, export.

The verbs are small and separate on purpose: they are what every training service offers, and one process, FSDP2 ranks
or a remote backend can all implement them. Losses return sums over tokens and the count; the caller divides (through
`OptimParams.denominator`), so packing, micro-batches and ranks never change the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from whet.inference.protocol import WeightUpdate

if TYPE_CHECKING:
    from whet.rl.data.batch import PackedBatch
    from whet.rl.sections.algorithm import LossConfig


@dataclass(frozen=True, slots=True, eq=False)
class TokenValues:
    """What a loss saw of each of a batch's T tokens; 0 for those that carry no loss."""

    logprobs_T: NDArray[np.float32]  # the learner's, at the temperature the token was sampled with
    clipped_T: NDArray[np.bool_]  # dropped by the loss, or its ratio was cut


@dataclass(slots=True)
class LossOutput:
    """Sums over the trained tokens of one batch; divide by `tokens` for means.

    `sums` holds one entry per diagnostic (`entropy`, `kl`, `clipped`, ...), each a sum over the same tokens.
    """

    loss: float
    tokens: int
    sums: dict[str, float] = field(default_factory=dict)
    values: TokenValues | None = None  # None where a loss has no use for what a sampler did
    flops: float | None = None  # of forward and backward pass; None where it is not counted
    peak_flops: float | None = None  # that the learner's device could do in a second; None where it is not known

    def __add__(self, other: LossOutput) -> LossOutput:
        """Of two parts of a batch. What was seen of each token stays with the parts."""
        names = self.sums | other.sums
        return LossOutput(
            loss=self.loss + other.loss,
            tokens=self.tokens + other.tokens,
            sums={name: self.sums.get(name, 0.0) + other.sums.get(name, 0.0) for name in names},
            flops=None if self.flops is None or other.flops is None else self.flops + other.flops,
            peak_flops=self.peak_flops or other.peak_flops,
        )

    def mean_of(self, epochs: int, values: TokenValues | None) -> LossOutput:
        """Of a batch that was gone through so often: what one pass saw on average, and all that was computed."""
        sums = {name: total / epochs for name, total in self.sums.items()}
        tokens = self.tokens // epochs
        return LossOutput(self.loss / epochs, tokens, sums, values, self.flops, self.peak_flops)


def nothing_learned(tokens: int) -> LossOutput:
    """Of a part of a batch without a trained token, which no learner is given."""
    return LossOutput(0.0, 0, values=TokenValues(np.zeros(tokens, np.float32), np.zeros(tokens, np.bool_)), flops=0.0)


@dataclass(frozen=True, slots=True)
class OptimParams:
    """What one optimiser step needs; everything else is fixed when the learner is made."""

    learning_rate: float  # the peak; the learner multiplies it with its schedule
    denominator: float  # gradients are divided by it: trained tokens of the whole batch, or as aggregation says
    max_grad_norm: float | None = 1.0
    ends_batch: bool = True  # False between the optimiser steps of one batch: `version` stays
    reference_share: float = 0.0  # behind a batch the reference takes so much of the policy; at 1 it becomes the policy
    critic_rate: float | None = None  # peak learning rate of the critic, where there is one
    resets_optimizer: bool = False  # behind the step the optimiser's state is that of a new one


@dataclass(frozen=True, slots=True)
class OptimOutput:
    grad_norm: float  # before clipping, after division
    learning_rate: float
    version: int  # policy version the weights have now


class Learner(ABC):
    version: int
    """Policy version of the weights now held: the number of batches learned."""

    @abstractmethod
    def forward_backward(self, batch: PackedBatch, loss: LossConfig) -> LossOutput:
        """Add the gradients of the summed loss: of a batch, or of one part of it after the other.

        `TrainingError` when the loss is not finite, naming the rollouts.
        """

    @abstractmethod
    def token_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        """log p of every trained token under the present weights, as it was sampled; 0 for others. No gradients."""

    @abstractmethod
    def reference_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        """The same under the reference, which the learner was made with."""

    def token_values(self, batch: PackedBatch) -> NDArray[np.float32]:
        """[2, T]: `token_logprobs`, and what the critic expects before each of these tokens."""
        raise NotImplementedError(f"{type(self).__name__} has no critic")

    @abstractmethod
    def optim_step(self, params: OptimParams) -> OptimOutput:
        """Divide, clip, apply and clear the gradients; `version` grows by one where the step ends a batch."""

    @abstractmethod
    def publish(self) -> WeightUpdate:
        """Write the current weights where engines can take them from."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Weights, optimiser and RNG state, into an existing directory; `checkpoints.py` makes it atomic."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """What `save` has written."""

    @abstractmethod
    def export(self, directory: Path, dtype: str = "float32") -> None:
        """A directory, its tensors in `dtype`, that plain `transformers` (all weights) or `peft` (LoRA) loads."""

    @abstractmethod
    def close(self) -> None:
        """End what computes."""

    def metrics(self) -> dict[str, float]:
        """What it reports of the batch it has learned, by the names of docs/training.md."""
        return {}

    def offload(self) -> None:
        """Move weights and optimiser states to host memory, so that an engine has the device's.

        Publishing, saving and exporting work from there. Which learners a run may have that do so is checked before it
        begins.
        """
        raise NotImplementedError(f"{type(self).__name__} does not leave its device")

    def restore(self) -> None:
        """Take them back, before the next gradients. Weights that were published are deleted: the engine sleeps."""
        raise NotImplementedError(f"{type(self).__name__} does not leave its device")
