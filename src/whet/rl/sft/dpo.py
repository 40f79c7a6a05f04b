"""Direct preference optimisation on stored pairs: one step, and their margins (`rl/data/preferences.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whet.rl.algorithms import Array
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.data.preferences import losses, margins_of, weights_of
from whet.rl.learner.protocol import Learner, LossOutput, OptimOutput, OptimParams
from whet.rl.sections.algorithm import LossConfig
from whet.rl.sft.data import Example

CROSS_ENTROPY = LossConfig(loss="cross_entropy")


def prefer(
    learner: Learner, pairs: Sequence[Example], beta: float, learning_rate: float, max_grad_norm: float | None
) -> tuple[LossOutput, OptimOutput, Array]:
    """One optimiser step down the mean loss of the P pairs; with their margins before it."""
    margins_P = margins(learner, pairs, beta)
    sequences, pair_B, sign_B = _flat(pairs)
    weights_B = weights_of(margins_P, pair_B, sign_B, beta)
    output = learner.forward_backward(pack(sequences, weights_B.tolist()), CROSS_ENTROPY)
    output.loss = float(losses(margins_P).sum())
    return output, learner.optim_step(OptimParams(learning_rate, len(pairs), max_grad_norm)), margins_P


def margins(learner: Learner, pairs: Sequence[Example], beta: float) -> Array:
    """Of each of P pairs. No gradients."""
    sequences, pair_B, sign_B = _flat(pairs)
    batch = pack(sequences)
    ratio_T = learner.token_logprobs(batch).astype(np.float64) - learner.reference_logprobs(batch)
    return margins_of(batch, ratio_T, pair_B, sign_B, len(pairs), beta)


def _flat(pairs: Sequence[Example]) -> tuple[list[TokenSequence], NDArray[np.int64], Array]:
    """All sequences, and of each its pair and whether it is of the better (1) or the worse answer (-1)."""
    sequences = [sequence for pair in pairs for sequence in pair.sequences]
    pair_B = np.repeat(np.arange(len(pairs)), [len(pair.sequences) for pair in pairs])
    signs = [1.0 if number < pair.preferred else -1.0 for pair in pairs for number in range(len(pair.sequences))]
    return sequences, pair_B, np.array(signs)
