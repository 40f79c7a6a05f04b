"""log p of the tokens that were taken, and entropies, without ever holding N x V logits for all N at once.

Logits are made chunk by chunk and thrown away; the backward pass makes them again. Both results have exact
gradients, with respect to hidden states and to the output matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22
"""Logits held at once: 16 MB in fp32, small enough to stay in a CPU's last-level cache."""

CUDA_CHUNK_ELEMENTS = 1 << 27
"""Logits held at once on a GPU: 512 MB, enough rows to keep its matrix units busy with a vocabulary of 150,000."""


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperatures_N: Tensor
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T / temperature)[target], and the entropy of that distribution in nats; fp32 [N].

    Under autocast the matrix products are made in its dtype, forward and backward.
    """
    if torch.is_autocast_enabled(hidden_ND.device.type):
        hidden_ND = hidden_ND.to(torch.get_autocast_dtype(hidden_ND.device.type))
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, targets_N, temperatures_N
    )
    return result


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperatures_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        count = len(targets_N)
        logprobs_N = hidden_ND.new_empty(count, dtype=torch.float32)
        entropies_N = torch.empty_like(logprobs_N)
        normalisers_N = torch.empty_like(logprobs_N)
        product_VD = weight_VD.to(hidden_ND.dtype)
        for part in _chunks(hidden_ND, len(weight_VD)):
            logits = _scaled_logits(hidden_ND[part], product_VD, temperatures_N[part])
            normaliser = logits.logsumexp(-1)
            taken = logits.gather(-1, targets_N[part, None]).squeeze(-1)
            logprobs_N[part] = taken - normaliser
            probabilities = (logits - normaliser[:, None]).exp_()
            entropies_N[part] = normaliser - torch.linalg.vecdot(probabilities, logits)
            normalisers_N[part] = normaliser
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, temperatures_N, normalisers_N, entropies_N)
        ctx.set_materialize_grads(False)
        return logprobs_N, entropies_N

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_N: Tensor | None, grad_entropies_N: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_ND, weight_VD, targets_N, temperatures_N, normalisers_N, entropies_N = ctx.saved_tensors
        if grad_logprobs_N is None and grad_entropies_N is None:
            return None, None, None, None
        grad_hidden_ND = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        product_VD = weight_VD.to(hidden_ND.dtype)
        for part in _chunks(hidden_ND, len(weight_VD)):
            logits = _scaled_logits(hidden_ND[part], product_VD, temperatures_N[part])
            logprobs = logits.sub_(normalisers_N[part, None])
            probabilities = logprobs.exp()
            grad = torch.zeros_like(probabilities)
            if grad_logprobs_N is not None:
                # d log p(target) / d logits = onehot(target) - p
                grad.addcmul_(probabilities, grad_logprobs_N[part, None], value=-1)
                grad.scatter_add_(-1, targets_N[part, None], grad_logprobs_N[part, None])
            if grad_entropies_N is not None:
                # d entropy / d logits = -p (log p + entropy)
                slope = probabilities.mul_(logprobs.add_(entropies_N[part, None]))
                grad.addcmul_(slope, grad_entropies_N[part, None], value=-1)
            grad = grad.div_(temperatures_N[part, None]).to(hidden_ND.dtype)
            if grad_hidden_ND is not None:
                grad_hidden_ND[part] = grad @ product_VD
            if grad_weight_VD is not None:
                grad_weight_VD += grad.T @ hidden_ND[part]
        return grad_hidden_ND, grad_weight_VD, None, None


def _scaled_logits(hidden: Tensor, weight: Tensor, temperatures: Tensor) -> Tensor:
    logits = (hidden @ weight.T).float()
    return logits.div_(temperatures[:, None])


def _chunks(hidden_ND: Tensor, vocabulary: int) -> list[slice]:
    count = len(hidden_ND)
    size = max(1, (CUDA_CHUNK_ELEMENTS if hidden_ND.is_cuda else CHUNK_ELEMENTS) // vocabulary)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
