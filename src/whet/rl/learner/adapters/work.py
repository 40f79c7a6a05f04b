"""Work for several LoRA adapters over one base, and its results.

A piece of work is one adapter's: its sequences, with what a loss needs of each token. Pieces of several adapters are
computed in one pass, each with the result that it has alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

DatumLoss = Callable[["Tensor", Mapping[str, "Tensor"]], tuple["Tensor", dict[str, "Tensor"]]]
"""From the logprobs of one sequence's targets, [N] or [N, K], and its inputs: the loss, a sum over its tokens, and
diagnostics, each a sum too."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """One adapter's shape; it stays as it is for the adapter's life."""

    rank: int
    targets: tuple[str, ...]
    """Linear layers that get one, by the last part of their names; `lm_head` is the unembedding."""
    alpha: float = 32.0
    """What the adapter adds is scaled by alpha / rank."""
    dropout: float = 0.0
    seed: int = 0
    """Of the first weights and of dropout."""


@dataclass(frozen=True, slots=True, eq=False)
class Datum:
    """One sequence of N input tokens; token i predicts `inputs["target_tokens"][i]`."""

    ids: list[int]
    inputs: Mapping[str, NDArray[np.generic]]
    """What the loss needs, by name: `target_tokens` [N] or [N, K], and beside it `weights`, `logprobs`, `advantages`,
    ... of the same shape."""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterWork:
    """Sequences of one adapter. With `backward`, the gradients of the summed loss are added to the adapter's."""

    adapter: str
    data: Sequence[Datum]
    loss: DatumLoss
    backward: bool = True


@dataclass(slots=True)
class AdapterOutput:
    """Of one piece of work; everything is a sum over its tokens, nothing is divided."""

    logprobs: list[NDArray[np.float32]]  # of each sequence's targets, in their shape
    loss: float
    sums: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdamParams:
    """One AdamW step; every call brings all of them."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """0 = gradients are not clipped."""
