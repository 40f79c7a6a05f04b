"""log p of the tokens that were taken, and entropies, without ever holding the logits of all tokens at once.

Logits are made chunk by chunk and thrown away; the backward pass makes them again, unless one chunk is all there is.
Both results have exact gradients, with respect to hidden states and to the output matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from whet.rl.learner.config import LOGITS_AT_ONCE
from whet.rl.learner.forward.kernels import product_dtype

LOG2_E = 1 / math.log(2)

CHUNK_ELEMENTS = LOGITS_AT_ONCE
"""Logits held at once: 16 MB in fp32, small enough to stay in a CPU's last-level cache."""

CUDA_CHUNK_ELEMENTS = 1 << 27
"""Logits held at once on a GPU: 512 MB, enough rows to keep its matrix units busy with a vocabulary of 150,000."""


def token_logprobs(
    hidden_UD: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    state_of_target_N: Tensor,
    temperatures_U: Tensor,
    kept: Kept | None = None,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T / temperature)[target], and the entropy of that distribution in nats; fp32 [N].

    Target n is predicted by hidden state `state_of_target_N[n]`, in ascending order; each of U predicts at least one,
    or is padding. With `kept` the softmax is over these tokens of each state alone; a target is always among them.
    Under autocast the matrix products are made in its dtype, forward and backward.
    """
    scaled_UD = (hidden_UD / temperatures_U[:, None]).to(product_dtype(hidden_UD.device))
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        scaled_UD, weight_VD, targets_N, state_of_target_N, kept
    )
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Which tokens hidden states choose among, as pairs by the order of states. One without pairs has all of them."""

    states: Tensor
    tokens: Tensor

    def cut(self, states: slice, count: int, vocabulary: int) -> Tensor:
        """Of the states of a chunk, [count, vocabulary]: what is not kept."""
        first, last = torch.searchsorted(
            self.states, torch.tensor([states.start, states.stop], device=self.states.device)
        ).tolist()
        rows, tokens = self.states[first:last] - states.start, self.tokens[first:last]
        kept = torch.zeros(count, vocabulary, dtype=torch.bool, device=rows.device)
        kept[rows, tokens] = True
        limited = torch.zeros(count, 1, dtype=torch.bool, device=rows.device)
        limited[rows] = True
        return limited & ~kept


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_UD: Tensor, weight_VD: Tensor, targets_N: Tensor, states_N: Tensor, cuts: Kept | None
    ) -> tuple[Tensor, Tensor]:
        logprobs_N = hidden_UD.new_empty(len(targets_N), dtype=torch.float32)
        entropies_U = torch.empty(len(hidden_UD), dtype=torch.float32, device=hidden_UD.device)
        product_VD = weight_VD.to(hidden_UD.dtype)
        ctx.chunks = _chunks(states_N, len(hidden_UD), len(weight_VD))
        kept: tuple[Tensor, ...] = ()
        for states, part in ctx.chunks:
            logs_UV, probabilities_UV = _distributions(hidden_UD[states], product_VD, states, cuts)
            logprobs_N[part] = logs_UV[states_N[part] - states.start, targets_N[part]]
            entropies_U[states] = torch.linalg.vecdot(probabilities_UV, logs_UV).neg_()
            if len(ctx.chunks) == 1:
                kept = logs_UV, probabilities_UV
        ctx.save_for_backward(hidden_UD, weight_VD, targets_N, states_N, entropies_U, *kept)
        ctx.set_materialize_grads(False)
        ctx.cuts = cuts
        return logprobs_N, entropies_U[states_N]

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_N: Tensor | None, grad_entropies_N: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden_UD, weight_VD, targets_N, states_N, entropies_U, *kept = ctx.saved_tensors
        if grad_logprobs_N is None:
            if grad_entropies_N is None:
                return None, None, None, None, None
            grad_logprobs_N = torch.zeros_like(grad_entropies_N)
        grad_logprobs_U = torch.zeros_like(entropies_U).index_add_(0, states_N, grad_logprobs_N)
        grad_entropies_U = None
        if grad_entropies_N is not None:
            grad_entropies_U = torch.zeros_like(entropies_U).index_add_(0, states_N, grad_entropies_N)
        grad_hidden_UD = torch.empty_like(hidden_UD) if ctx.needs_input_grad[0] else None
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        product_VD = weight_VD.to(hidden_UD.dtype)
        for states, part in ctx.chunks:
            logs_UV, probabilities_UV = kept or _distributions(hidden_UD[states], product_VD, states, ctx.cuts)
            # d log p(target) / d logits = onehot(target) - p, d entropy / d logits = -p (log p + entropy)
            slope = -grad_logprobs_U[states, None]
            if grad_entropies_U is not None:
                slope = slope - grad_entropies_U[states, None] * (logs_UV + entropies_U[states, None])
            grad = probabilities_UV * slope
            place_N = (states_N[part] - states.start) * grad.shape[1] + targets_N[part]
            grad.view(-1).index_add_(0, place_N, grad_logprobs_N[part])
            grad = grad.to(hidden_UD.dtype)
            if grad_hidden_UD is not None:
                grad_hidden_UD[states] = grad @ product_VD
            if grad_weight_VD is not None:
                grad_weight_VD += grad.T @ hidden_UD[states]
        return grad_hidden_UD, grad_weight_VD, None, None, None


def _distributions(hidden: Tensor, weight: Tensor, states: slice, cuts: Kept | None) -> tuple[Tensor, Tensor]:
    """Logarithms of probabilities, and probabilities. What was cut off has probability 0, and 0 for its logarithm."""
    logits = (hidden @ weight.T).float()
    if cuts is not None:
        cut = cuts.cut(states, *logits.shape)
        logs = logits.masked_fill_(cut, -math.inf).log_softmax(-1)
        probabilities = (logs * LOG2_E).exp2_()
        return logs.masked_fill_(cut, 0.0), probabilities
    logs = logits.log_softmax(-1)
    return logs, (logs * LOG2_E).exp2_()  # three times as fast as exp on some CPUs


def _chunks(states_N: Tensor, count: int, vocabulary: int) -> list[tuple[slice, slice]]:
    """Hidden states that are computed together, and the targets that they predict."""
    size = max(1, (CUDA_CHUNK_ELEMENTS if states_N.is_cuda else CHUNK_ELEMENTS) // vocabulary)
    starts = [*range(0, count, size), count]
    bounds = torch.searchsorted(states_N, torch.tensor(starts, device=states_N.device)).tolist()
    return [(slice(*states), slice(*part)) for states, part in zip(pairwise(starts), pairwise(bounds), strict=True)]
