"""How much a learner computes, and how much its device could: what `perf/mfu` is made of. Pure.

    flops = w (P_layers T - P_last (T - N) + P_head N) + 12 W A

P are the parameters that a token is multiplied with (embeddings are looked up; of a mixture of experts those of the
experts that a token goes to), T tokens that are computed, N of them that predict a trained one, W the width of all
query heads, A pairs of a token and one that it attends to, of all layers, each within its window. w is 6: 2 forward, 2
for the gradient of what goes in and 2 for that of the weights; 4 where the weights are frozen under an adapter, whose
own products are left out (they are few). P_last is what the last layer has behind its attention, which is computed only
for the N tokens that predict. What is computed again, for activation checkpointing, does not count, nor does what
sequences share more than once.
"""

from __future__ import annotations

from collections.abc import Sequence

from whet.inference.architecture import Architecture
from whet.rl.learner.forward.layout import TokenLayout

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "RTX 4090": 165.0}
"""Dense bfloat16 peaks from the makers' data sheets, by a part of the device's name."""


def known_peak(device: str) -> float | None:
    """The peak of a device, in TFLOP/s, by the name its driver gives it; None where it is not known."""
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in device), None)


def layer_parameters(arch: Architecture) -> int:
    """Parameters of all layers that one token is multiplied with."""
    width, keys = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    before = arch.hidden_size * (width + 2 * keys)
    return sum(before + _behind_attention(arch, layer) for layer in range(arch.num_layers))


def _behind_attention(arch: Architecture, layer: int) -> int:
    """The output projection and the feed-forward part, of a mixture as far as a token goes through it."""
    hidden, experts = arch.hidden_size, arch.experts
    output = hidden * arch.num_heads * arch.head_dim
    if experts is None or layer not in experts.layers:
        return output + 3 * hidden * arch.intermediate_size
    return output + 3 * hidden * experts.intermediate_size * experts.per_token + hidden * experts.count


def batch_flops(arch: Architecture, layouts: Sequence[TokenLayout], *, frozen: bool) -> float:
    """Of forward and backward pass over a batch; `frozen`: only an adapter is trained."""
    tokens = sum(len(layout.tokens) for layout in layouts)
    predictors = sum(len(layout.predictors) for layout in layouts)
    distributions = sum(len(layout.predictor_of_distribution) for layout in layouts)
    products = layer_parameters(arch) * tokens + arch.hidden_size * arch.vocab_size * distributions
    products -= _behind_attention(arch, arch.num_layers - 1) * (tokens - predictors)
    pairs = sum(
        arch.windows.count(window) * _pairs(layout, window) for layout in layouts for window in set(arch.windows)
    )
    return float((4 if frozen else 6) * products + 12 * arch.num_heads * arch.head_dim * pairs)


def _pairs(layout: TokenLayout, window: int | None) -> float:
    """Pairs of a token and one that it reads: all of those before it, or in its window, and half of itself."""
    before = layout.positions if window is None else layout.positions.clip(max=window - 1)
    return float(before.sum() + len(before) / 2)
