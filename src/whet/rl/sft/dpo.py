"""Direct preference optimisation: of two answers to a prompt, the better one becomes likelier than the worse one.

With p the model, f the model that the run began with, c the better answer and r the worse one, the loss of a pair is

    margin = beta * ((log p(c) - log f(c)) - (log p(r) - log f(r)))
    loss   = -log sigmoid(margin)

where log p of an answer is the sum over its trained tokens.
Source: Rafailov et al. 2023, Direct Preference Optimization (arXiv:2305.18290, equation 7).

The gradient is -beta sigmoid(-margin) (grad log p(c) - grad log p(r)): a cross entropy in which each answer weighs
beta sigmoid(-margin), the worse one negatively. So the margins of all pairs are computed first, without gradients, and
the two answers of a pair need not be in one micro-batch or on one rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.protocol import Learner, LossOutput, OptimOutput, OptimParams
from whet.rl.sections.algorithm import LossConfig
from whet.rl.sft.data import Example

CROSS_ENTROPY = LossConfig(loss="cross_entropy")

Array = NDArray[np.float64]


def prefer(
    learner: Learner, pairs: Sequence[Example], beta: float, learning_rate: float, max_grad_norm: float | None
) -> tuple[LossOutput, OptimOutput, Array]:
    """One optimiser step down the mean loss of the P pairs; with their margins before it."""
    margins_P = margins(learner, pairs, beta)
    sequences, pair_B, sign_B = _flat(pairs)
    weights_B = beta * sign_B / (1 + np.exp(margins_P))[pair_B]
    output = learner.forward_backward(pack(sequences, weights_B.tolist()), CROSS_ENTROPY)
    output.loss = float(losses(margins_P).sum())
    return output, learner.optim_step(OptimParams(learning_rate, len(pairs), max_grad_norm)), margins_P


def margins(learner: Learner, pairs: Sequence[Example], beta: float) -> Array:
    """Of each of P pairs. No gradients."""
    sequences, pair_B, sign_B = _flat(pairs)
    batch = pack(sequences)
    ratio_T = learner.token_logprobs(batch).astype(np.float64) - learner.reference_logprobs(batch)
    of_token = batch.sequence_of_token
    margins_P = np.zeros(len(pairs))
    np.add.at(margins_P, pair_B[of_token], beta * sign_B[of_token] * ratio_T)
    return margins_P


def losses(margins_P: Array) -> Array:
    """-log sigmoid(margin)"""
    return np.logaddexp(0, -margins_P)


def preference_metrics(margins_P: Array) -> dict[str, float]:
    return {"preference/margin": float(margins_P.mean()), "preference/accuracy": float((margins_P > 0).mean())}


def _flat(pairs: Sequence[Example]) -> tuple[list[TokenSequence], NDArray[np.int64], Array]:
    """All sequences, and of each its pair and whether it is of the better (1) or the worse answer (-1)."""
    sequences = [sequence for pair in pairs for sequence in pair.sequences]
    pair_B = np.repeat(np.arange(len(pairs)), [len(pair.sequences) for pair in pairs])
    signs = [1.0 if number < pair.preferred else -1.0 for pair in pairs for number in range(len(pair.sequences))]
    return sequences, pair_B, np.array(signs)
