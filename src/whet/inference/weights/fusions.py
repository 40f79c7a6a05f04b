"""Which layers of a checkpoint make up the four matrices of a packed decoder layer, and in which order.

Heads are packed so that the two dimensions of a rotated pair are half a head apart, whichever way the family pairs
them: queries and keys in the same order have the same products. Where only a part of a head is rotated, the other
dimensions are pairs that never turn.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whet.inference.architecture import Architecture

QKV, OUTPUT, GATE_UP, DOWN = range(4)
"""The four matrices of a decoder layer."""


class FusedPart(NamedTuple):
    """A linear layer: its name within the decoder layer, and its outputs."""

    name: str
    size: int


class Fusion(NamedTuple):
    """Linear layers that read the same, one after the other."""

    source: int  # inputs
    norm: str | None  # whose gain is folded in
    parts: tuple[FusedPart, ...]
    scale: Tensor | None = None  # of each output
    order: Tensor | None = None  # outputs as they are packed

    def arranged(self, outputs: Tensor) -> Tensor:
        """Scaled and in the packed order; the first dimension of `outputs` is that of the parts, joined."""
        if self.scale is not None:
            outputs = outputs * self.scale.to(outputs.device).view(-1, *[1] * (outputs.dim() - 1))
        return outputs if self.order is None else outputs[self.order.to(outputs.device)]


def fusions(arch: Architecture, layer: int) -> tuple[Fusion, ...]:
    """In the order of QKV, OUTPUT, GATE_UP and DOWN; nothing of experts."""
    inner = arch.intermediate_size
    feed_forward = gate_up(arch, "mlp.", inner), down(arch, "mlp.", inner)
    if arch.experts is not None and layer in arch.experts.layers:
        feed_forward = feed_forward[0]._replace(parts=()), feed_forward[1]._replace(parts=())
    return attention(arch), output_projection(arch), *feed_forward


def attention(arch: Architecture) -> Fusion:
    """Queries, keys and values. The scale of scores goes into the queries, or with a query norm into its gain."""
    queries, keys = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    parts: tuple[FusedPart, ...] = (FusedPart("self_attn.qkv_proj", queries + 2 * keys),)
    if not arch.fused_qkv:
        parts = (
            FusedPart("self_attn.q_proj", queries),
            FusedPart("self_attn.k_proj", keys),
            FusedPart("self_attn.v_proj", keys),
        )
    scale = None
    if arch.qk_norm is None:
        scale = torch.ones(queries + 2 * keys)
        scale[:queries] = arch.attention_scale
    order, within = None, head_order(arch)
    if within is not None:
        rotated = arch.num_heads + arch.num_kv_heads
        heads = torch.arange(0, rotated * arch.head_dim, arch.head_dim)
        order = torch.cat([(heads[:, None] + within).flatten(), torch.arange(queries + keys, queries + 2 * keys)])
    return Fusion(arch.hidden_size, arch.norms.attention_in, parts, scale, order)


def output_projection(arch: Architecture) -> Fusion:
    return Fusion(arch.num_heads * arch.head_dim, None, (FusedPart("self_attn.o_proj", arch.hidden_size),))


def gate_up(arch: Architecture, at: str, size: int) -> Fusion:
    """Gates, then ups."""
    parts: tuple[FusedPart, ...] = (FusedPart(f"{at}gate_up_proj", 2 * size),)
    if not arch.fused_gate_up:
        parts = (FusedPart(f"{at}gate_proj", size), FusedPart(f"{at}up_proj", size))
    return Fusion(arch.hidden_size, arch.norms.feed_in, parts)


def down(arch: Architecture, at: str, size: int) -> Fusion:
    return Fusion(size, None, (FusedPart(f"{at}down_proj", arch.hidden_size),))


def head_order(arch: Architecture) -> Tensor | None:
    """The dimensions of a head as they are packed; None where that is as they are."""
    dim = arch.head_dim
    rotated = next((rope.dim for rope in arch.ropes if rope is not None), dim)
    pairs = torch.arange(rotated).view(-1, 2) if arch.interleaved else torch.arange(rotated).view(2, -1).t()
    rest = torch.arange(rotated, dim).view(2, -1).t()
    order = torch.cat([pairs, rest]).t().flatten()
    return None if torch.equal(order, torch.arange(dim)) else order
