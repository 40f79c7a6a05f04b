"""log p of the tokens that were taken, and entropies, without ever holding N x V logits for all N at once.

Logits are made chunk by chunk and thrown away; the backward pass makes them again, unless one chunk is all there is.
Both results have exact gradients, with respect to hidden states and to the output matrix.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whet.rl.learner.config import LOGITS_AT_ONCE
from whet.rl.learner.kernels import product_dtype

LOG2_E = 1 / math.log(2)

CHUNK_ELEMENTS = LOGITS_AT_ONCE
"""Logits held at once: 16 MB in fp32, small enough to stay in a CPU's last-level cache."""

CUDA_CHUNK_ELEMENTS = 1 << 27
"""Logits held at once on a GPU: 512 MB, enough rows to keep its matrix units busy with a vocabulary of 150,000."""


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperatures_N: Tensor
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T / temperature)[target], and the entropy of that distribution in nats; fp32 [N].

    Under autocast the matrix products are made in its dtype, forward and backward.
    """
    scaled_ND = (hidden_ND / temperatures_N[:, None]).to(product_dtype(hidden_ND.device))
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(scaled_ND, weight_VD, targets_N)  # type: ignore[no-untyped-call]
    return result


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        logprobs_N = hidden_ND.new_empty(len(targets_N), dtype=torch.float32)
        entropies_N = torch.empty_like(logprobs_N)
        product_VD = weight_VD.to(hidden_ND.dtype)
        chunks = _chunks(hidden_ND, len(weight_VD))
        kept: tuple[Tensor, ...] = ()
        for part in chunks:
            logs_NV, probabilities_NV = _distributions(hidden_ND[part], product_VD)
            logprobs_N[part] = logs_NV.gather(-1, targets_N[part, None]).squeeze(-1)
            entropies_N[part] = torch.linalg.vecdot(probabilities_NV, logs_NV).neg_()
            if len(chunks) == 1:
                kept = logs_NV, probabilities_NV
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, entropies_N, *kept)
        ctx.set_materialize_grads(False)
        return logprobs_N, entropies_N

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_N: Tensor | None, grad_entropies_N: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        hidden_ND, weight_VD, targets_N, entropies_N, *kept = ctx.saved_tensors
        if grad_logprobs_N is None:
            if grad_entropies_N is None:
                return None, None, None
            grad_logprobs_N = torch.zeros_like(grad_entropies_N)
        grad_hidden_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        product_VD = weight_VD.to(hidden_ND.dtype)
        for part in _chunks(hidden_ND, len(weight_VD)):
            logs_NV, probabilities_NV = kept or _distributions(hidden_ND[part], product_VD)
            # d log p(target) / d logits = onehot(target) - p, d entropy / d logits = -p (log p + entropy)
            slope = -grad_logprobs_N[part, None]
            if grad_entropies_N is not None:
                slope = slope - grad_entropies_N[part, None] * (logs_NV + entropies_N[part, None])
            grad = (probabilities_NV * slope).scatter_add_(-1, targets_N[part, None], grad_logprobs_N[part, None])
            grad = grad.to(hidden_ND.dtype)
            if grad_hidden_ND is not None:
                grad_hidden_ND[part] = grad @ product_VD
            if grad_weight_VD is not None:
                grad_weight_VD += grad.T @ hidden_ND[part]
        return grad_hidden_ND, grad_weight_VD, None


def _distributions(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of probabilities, and probabilities."""
    logs = (hidden @ weight.T).float().log_softmax(-1)
    return logs, (logs * LOG2_E).exp2_()  # three times as fast as exp on some CPUs


def _chunks(hidden_ND: Tensor, vocabulary: int) -> list[slice]:
    count = len(hidden_ND)
    size = max(1, (CUDA_CHUNK_ELEMENTS if hidden_ND.is_cuda else CHUNK_ELEMENTS) // vocabulary)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
