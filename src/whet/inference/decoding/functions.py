"""What depends on the family and is no weight: rotary tables and activations. Engine and learner share this code.

Frequencies are computed in float32 by the steps that `transformers` takes, so that positions turn by the same angles:
at position 8,192 the last bit of a frequency is a difference of 1e-3. `dynamic` stretches nothing within the context
that a config names, and `longrope` has one set of factors up to the context of its pre-training; whet's contexts end
there. Sources: YaRN, Peng et al. 2023 (arXiv:2309.00071); LongRoPE, Ding et al. 2024 (arXiv:2402.13753); `llama3`, the
Llama 3.1 release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.inference.architecture import Rope

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


def at_once(numbers: int, device: torch.device) -> int:
    """How many are computed together where a CPU, for its caches, computes so many: on CUDA 16 times as many, enough
    rows to keep its matrix units busy."""
    return numbers << 4 if device.type == "cuda" else numbers


def frequencies(rope: Rope) -> Tensor:
    """How far each pair of rotated dimensions turns from one position to the next, fastest first: `[dim / 2]`."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    periods = rope.theta**exponents
    if rope.kind == "linear":
        return 1.0 / periods / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, 1.0 / periods)
    if rope.kind == "yarn":
        return _yarn(rope, periods)
    if rope.kind == "longrope":
        return 1.0 / (torch.tensor(rope.short_factors, dtype=torch.float32) * periods)
    return 1.0 / periods


def turns(rope: Rope, positions_T: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotated pairs at these positions, both `[T, dim / 2]` in float32."""
    angles = positions_T[:, None].float() * frequencies(rope).to(positions_T.device)
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Only slow frequencies are divided, with a smooth passage to those that stay."""
    wavelengths = 2 * math.pi / plain
    shortest_stretched = rope.original_max_position / rope.low_freq_factor
    longest_kept = rope.original_max_position / rope.high_freq_factor
    smooth = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - smooth) * plain / rope.factor + smooth * plain
    stretched = torch.where(wavelengths > shortest_stretched, plain / rope.factor, plain)
    return torch.where((wavelengths >= longest_kept) & (wavelengths <= shortest_stretched), between, stretched)


def _yarn(rope: Rope, periods: Tensor) -> Tensor:
    """Frequencies that turn often within the original context stay, those that turn seldom are divided."""

    def pair_that_turns(times: float) -> float:
        return (rope.dim * math.log(rope.original_max_position / (times * 2 * math.pi))) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * periods) * (1 - kept) + 1.0 / periods * kept


# Mixtures of experts: which experts a token goes to, and their output. Engine and learner share this code.
#
#     p = softmax(x @ router)              over all experts
#     chosen = the K largest p             w = p[chosen], divided by their sum where the model says so
#     y = sum over chosen of w_e down_e(silu(gate_e(x)) * up_e(x))
#
# Tokens are sorted by expert, so that each expert that was chosen at all is one product. Source of the layer: Qwen3
# (arXiv:2505.09388), as `transformers` computes it.


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
    """What the chosen experts make of each token, weighed and summed: [N, D]. `gate_up_EDI` holds gates, then ups.

    Grouped products: one gradient for a stack, and on CUDA no wait for the number of tokens that each expert has.
    """
    count, per_token = chosen_NK.shape
    experts, order = chosen_NK.flatten().sort(stable=True)
    every = torch.arange(len(gate_up_EDI), device=experts.device)
    ends_E = torch.searchsorted(experts, every, right=True, out_int32=True)
    gate, up = F.grouped_mm(x_ND[order // per_token], gate_up_EDI.to(x_ND.dtype), offs=ends_E).chunk(2, dim=-1)
    made = F.grouped_mm(F.silu(gate) * up, down_EID.to(x_ND.dtype), offs=ends_E)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    out_NKD = made[places].unflatten(0, (count, per_token))
    mixed_ND: Tensor = (out_NKD * weights_NK.to(out_NKD.dtype).unsqueeze(-1)).sum(1)
    return mixed_ND
