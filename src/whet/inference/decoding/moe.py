"""Mixtures of experts: which experts a token goes to, and their output. Engine and learner share this code.

    p = softmax(x @ router)              over all experts
    chosen = the K largest p             w = p[chosen], divided by their sum where the model says so
    y = sum over chosen of w_e down_e(silu(gate_e(x)) * up_e(x))

Tokens are sorted by expert, so that each expert that was chosen at all is one product. Source of the layer: Qwen3
(arXiv:2505.09388), as `transformers` computes it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    logits_NE: Tensor, per_token: int, *, normalise: bool, replayed_NK: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The K experts of each token, and their weights (float32); both [N, K].

    `replayed_NK` says which experts to take instead, at their own probabilities; -1 leaves the choice to the router.
    """
    probabilities_NE = logits_NE.softmax(-1, dtype=torch.float32)
    weights_NK, chosen_NK = probabilities_NE.topk(per_token, dim=-1)
    if replayed_NK is not None:
        chosen_NK = torch.where(replayed_NK >= 0, replayed_NK.long(), chosen_NK)
        weights_NK = probabilities_NE.gather(-1, chosen_NK)
    if normalise:
        weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
    return chosen_NK, weights_NK


def mix_experts(x_ND: Tensor, chosen_NK: Tensor, weights_NK: Tensor, gate_up_EDI: Tensor, down_EID: Tensor) -> Tensor:
    """What the chosen experts make of each token, weighed and summed: [N, D]. `gate_up_EDI` holds gates, then ups."""
    count, per_token = chosen_NK.shape
    order = chosen_NK.flatten().argsort(stable=True)
    sizes = chosen_NK.flatten().bincount(minlength=len(gate_up_EDI)).tolist()
    made = []
    for expert, part in enumerate(x_ND[order // per_token].split(sizes)):
        if len(part):
            gate, up = (part @ gate_up_EDI[expert]).chunk(2, dim=-1)
            made.append((F.silu(gate) * up) @ down_EID[expert])
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    out_NKD = torch.cat(made)[places].unflatten(0, (count, per_token))
    mixed_ND: Tensor = (out_NKD * weights_NK.to(out_NKD.dtype).unsqueeze(-1)).sum(1)
    return mixed_ND
