"""The feed-forward part of a layer with experts, for training: the router's choice, or the sampler's replayed.

Sampler and learner round differently, so near a tie they choose other experts, and the ratio of probabilities jumps
for no reason that a gradient could mend. Replaying the sampler's choice keeps the ratio smooth; the router still
learns, through the weights of the experts that were chosen. The auxiliary loss that balances experts in pre-training is
not part of any loss here. Source: Rollout Routing Replay, Ma et al. 2025 (arXiv:2510.11370).
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from whet.inference.decoding.functions import mix_experts, route


def feed_forward(block: Any, x_TD: Tensor, replayed_TK: Tensor | None) -> Tensor:
    """What a `transformers` sparse block makes of T tokens; `replayed_TK` as in `route`."""
    router, experts = block.gate, block.experts
    chosen_TK, weights_TK = route(
        F.linear(x_TD, router.weight), router.top_k, normalise=router.norm_topk_prob, replayed_NK=replayed_TK
    )
    gate_up_EDI, down_EID = experts.gate_up_proj.transpose(1, 2), experts.down_proj.transpose(1, 2)
    return mix_experts(x_TD, chosen_TK, weights_TK, gate_up_EDI, down_EID)


def as_checkpoint(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names that checkpoints have: one matrix per expert, where `transformers` holds a stack of them all."""
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".experts.")
        if kind == "gate_up_proj":
            for expert, gate_up in enumerate(tensor):
                gate, up = gate_up.chunk(2)
                named[f"{stem}.experts.{expert}.gate_proj.weight"] = gate
                named[f"{stem}.experts.{expert}.up_proj.weight"] = up
        elif kind == "down_proj":
            named.update({f"{stem}.experts.{expert}.down_proj.weight": down for expert, down in enumerate(tensor)})
        else:
            named[name] = tensor
    return named
