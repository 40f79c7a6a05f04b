"""The `Learner` protocol: forward/backward, optimiser step, publish, save, load, export.

The verbs are small and separate on purpose: they are what every training service offers, and one process, FSDP2 ranks
or a remote backend can all implement them. Losses return sums over tokens and the count; the caller divides (through
`OptimParams.denominator`), so packing, micro-batches and ranks never change the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

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


def nothing_learned(tokens: int) -> LossOutput:
    """Of a part of a batch without a trained token, which no learner is given."""
    return LossOutput(0.0, 0, values=TokenValues(np.zeros(tokens, np.float32), np.zeros(tokens, np.bool_)), flops=0.0)


@dataclass(frozen=True, slots=True)
class OptimParams:
    """What one optimiser step needs; everything else is fixed when the learner is made."""

    learning_rate: float  # the peak; the learner multiplies it with its schedule
    denominator: int  # number of trained tokens of the whole batch: gradients are divided by it
    max_grad_norm: float | None = 1.0


@dataclass(frozen=True, slots=True)
class OptimOutput:
    grad_norm: float  # before clipping, after division
    learning_rate: float
    version: int  # policy version the weights have now


class Learner(Protocol):
    version: int
    """Policy version of the weights now held: the number of optimiser steps taken."""

    def forward_backward(self, batch: PackedBatch, loss: LossConfig) -> LossOutput:
        """Add the gradients of the summed loss: of a batch, or of one part of it after the other.

        `TrainingError` when the loss is not finite, naming the rollouts.
        """
        ...

    def token_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        """log p of every trained token under the present weights, as it was sampled; 0 for others. No gradients."""
        ...

    def optim_step(self, params: OptimParams) -> OptimOutput:
        """Divide, clip, apply and clear the gradients; `version` grows by one."""
        ...

    def publish(self) -> WeightUpdate:
        """Write the current weights where engines can take them from."""
        ...

    def save(self, directory: Path) -> None:
        """Weights, optimiser and RNG state, into an existing directory; `checkpoints.py` makes it atomic."""
        ...

    def load(self, directory: Path) -> None: ...

    def export(self, directory: Path, dtype: str = "float32") -> None:
        """A directory, its tensors in `dtype`, that plain `transformers` (all weights) or `peft` (LoRA) loads."""
        ...

    def close(self) -> None: ...


def learner_metrics(learner: Learner) -> dict[str, float]:
    """What a learner reports of the batch it has learned, by the names of docs/training.md; {} of one without it."""
    measure = getattr(learner, "metrics", None)
    return {} if measure is None else measure()


@runtime_checkable
class OffloadingLearner(Protocol):
    """What a learner has, too, that can leave the memory of its device to an engine for a while."""

    def offload(self) -> None:
        """Move weights and optimiser states to host memory. Publishing, saving and exporting work from there."""
        ...

    def restore(self) -> None:
        """Take them back, before the next gradients. Weights that were published are deleted: the engine sleeps."""
        ...


def offloading_learner(learner: object) -> OffloadingLearner:
    """A learner that can; which ones a run may have is checked before it begins."""
    assert isinstance(learner, OffloadingLearner), f"{type(learner).__name__} does not leave its device"
    return learner
