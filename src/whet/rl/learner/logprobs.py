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


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperatures_N: Tensor
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T / temperature)[target], and the entropy of that distribution in nats; fp32 [N]."""
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
        for part in _chunks(count, len(weight_VD)):
            logits = _scaled_logits(hidden_ND[part], weight_VD, temperatures_N[part])
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
        for part in _chunks(len(targets_N), len(weight_VD)):
            logits = _scaled_logits(hidden_ND[part], weight_VD, temperatures_N[part])
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
                grad_hidden_ND[part] = grad @ weight_VD.to(grad.dtype)
            if grad_weight_VD is not None:
                grad_weight_VD += grad.T @ hidden_ND[part]
        return grad_hidden_ND, grad_weight_VD, None, None


def _scaled_logits(hidden: Tensor, weight: Tensor, temperatures: Tensor) -> Tensor:
    logits = (hidden @ weight.T.to(hidden.dtype)).float()
    return logits.div_(temperatures[:, None])


def _chunks(count: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
