"""The forward pass that training runs: a `transformers` decoder's own modules, called over a `Layout`.

Every parameter stays where `transformers` put it and every projection is called as a module, so PEFT's layers, names
and checkpoints work unchanged. What is ours is the order of work: tokens stay flat, a prompt shared by a group is
computed once, attention folds the query heads of a key-value head into one product, and the last layer runs only
where a token is trained. Written for Qwen3- and Llama-style decoders, with or without experts; attention dropout is
not applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whet.rl.learner import moe
from whet.rl.learner.kernels import attend, pad, product_dtype, rms_norm, rotate, share, take, unpad
from whet.rl.learner.layout import Layout, Rectangle

MASKED = -1e9
EAGER_KEYS = 1024
"""Up to so many keys, plain matrix products beat torch's fused attention in the backward pass on CPU."""


def hidden_states(
    model: nn.Module, ids_T: Tensor, layout: Layout, *, experts_TLK: Tensor | None = None, recompute: bool = False
) -> Tensor:
    """Final hidden states [N, hidden] of a layout's predictors; `model` is the decoder without its output head.

    `experts_TLK` are those that each token is to go to in each of L layers, -1 where the router chooses. With
    `recompute` only the input of each layer is kept, and the layer computed again when its gradient is (activation
    checkpointing: Chen et al. 2016, arXiv:1604.06174); the random numbers of dropout are the same both times.
    """
    modules: Any = model
    x_TD = modules.embed_tokens(ids_T)
    plan = _plan(modules, layout, x_TD, experts_TLK)
    last = len(modules.layers) - 1
    for number, layer in enumerate(modules.layers):
        run = partial(_layer, layer, plan=plan, number=number, is_last=number == last)
        x_TD = checkpoint(run, x_TD, use_reentrant=False) if recompute and torch.is_grad_enabled() else run(x_TD)
    return _rms_norm(modules.norm, x_TD)


@dataclass(frozen=True, slots=True)
class _Block:
    """A `Rectangle` as tensors, with the mask of its queries (R x L) over their keys, added to attention scores.

    Without a mask each query sees its own row up to itself; a mask of long rows would be larger than the model.
    """

    shape: tuple[int, int]
    slots: Tensor
    where: Tensor
    padding: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """A layout as tensors; made once per micro-batch."""

    prefix_tokens: int
    prefixes: _Block
    rows: _Block
    prefix_of_row: Tensor
    predictors: Tensor
    cos: Tensor
    sin: Tensor
    experts_TLK: Tensor | None
    dtype: torch.dtype  # of what goes into matrix products


def _plan(modules: Any, layout: Layout, like: Tensor, experts_TLK: Tensor | None) -> _Plan:
    device = like.device
    longest_prefix, longest_row = layout.prefixes.slots.shape[1], layout.rows.slots.shape[1]
    row_bias = _causal(longest_row)
    if layout.prefix_tokens:
        unread = torch.arange(longest_prefix) >= torch.from_numpy(layout.prefix_lengths)[:, None]
        over_prefix = torch.zeros(unread.shape).masked_fill_(unread, MASKED)
        over_rows = _mask(longest_row).expand(len(unread), -1, -1)
        row_bias = torch.cat([over_prefix[:, None].expand(-1, longest_row, -1), over_rows], dim=-1)
    cos, sin = modules.rotary_emb(like[None, :1].float(), torch.from_numpy(layout.positions).to(device)[None])
    return _Plan(
        prefix_tokens=layout.prefix_tokens,
        prefixes=_block(layout.prefixes, _causal(longest_prefix), device),
        rows=_block(layout.rows, row_bias, device),
        prefix_of_row=torch.from_numpy(layout.prefix_of_row).to(device),
        predictors=torch.from_numpy(layout.predictors).to(device),
        cos=cos[0].chunk(2, dim=-1)[0].unsqueeze(1),
        sin=sin[0].chunk(2, dim=-1)[0].unsqueeze(1),
        experts_TLK=experts_TLK,
        dtype=product_dtype(device),
    )


def _block(rectangle: Rectangle, bias: Tensor | None, device: torch.device) -> _Block:
    return _Block(
        shape=(rectangle.slots.shape[0], rectangle.slots.shape[1]),
        slots=torch.from_numpy(rectangle.slots.reshape(-1)).to(device),
        where=torch.from_numpy(rectangle.where).to(device),
        padding=torch.from_numpy(rectangle.padding).to(device),
        bias=None if bias is None else bias.to(device),
    )


def _causal(length: int) -> Tensor | None:
    """The mask of rows that read nothing but themselves; None where attention makes it up as it goes."""
    return None if length > EAGER_KEYS else _mask(length)[None]


def _mask(length: int) -> Tensor:
    return torch.full((length, length), MASKED).triu_(1)


def _layer(layer: Any, x_TD: Tensor, *, plan: _Plan, number: int, is_last: bool) -> Tensor:
    # Nobody reads what the last layer would make of prefix tokens and other prompt tokens: there they only
    # supply keys and values.
    first_query = plan.prefix_tokens if is_last else 0
    mixed_TD = _attention(layer.self_attn, _rms_norm(layer.input_layernorm, x_TD, plan.dtype), plan, first_query)
    replayed_TK = None if plan.experts_TLK is None else plan.experts_TLK[:, number]
    if is_last:
        mixed_TD = take(mixed_TD, plan.predictors)
        predictors = plan.predictors + plan.prefix_tokens
        x_TD = take(x_TD, predictors)
        replayed_TK = None if replayed_TK is None else replayed_TK.index_select(0, predictors)
    x_TD = x_TD + layer.self_attn.o_proj(mixed_TD)
    mlp = layer.mlp
    normed_TD = _rms_norm(layer.post_attention_layernorm, x_TD, plan.dtype)
    if hasattr(mlp, "experts"):
        return x_TD + moe.feed_forward(mlp, normed_TD, replayed_TK)
    out_TD: Tensor = x_TD + mlp.down_proj(mlp.act_fn(mlp.gate_proj(normed_TD)) * mlp.up_proj(normed_TD))
    return out_TD


def _attention(attention: Any, x_TD: Tensor, plan: _Plan, first_query: int) -> Tensor:
    """Attention's output before `o_proj`, for the tokens from `first_query` on."""
    head_dim, scale = attention.head_dim, attention.scaling
    q = attention.q_proj(x_TD[first_query:]).unflatten(-1, (-1, head_dim))
    k = attention.k_proj(x_TD).unflatten(-1, (-1, head_dim))
    v = attention.v_proj(x_TD)
    if hasattr(attention, "q_norm"):
        q, k = _rms_norm(attention.q_norm, q), _rms_norm(attention.k_norm, k)
    q = rotate(q, plan.cos[first_query:] * scale, plan.sin[first_query:] * scale, v.dtype).flatten(1)
    k = rotate(k, plan.cos, plan.sin, v.dtype).flatten(1)

    rows, prefixes = plan.rows, plan.prefixes
    if not plan.prefix_tokens:
        return _unpad(_attend(_pad(q, rows), _pad(k, rows), _pad(v, rows), rows.bias, head_dim), rows)
    parts = [plan.prefix_tokens, len(rows.where)]
    (prefix_k, row_k), (prefix_v, row_v) = k.split(parts), v.split(parts)
    prefix_k, prefix_v = _pad(prefix_k, prefixes), _pad(prefix_v, prefixes)
    keys = torch.cat([share(prefix_k, plan.prefix_of_row), _pad(row_k, rows)], dim=1)
    values = torch.cat([share(prefix_v, plan.prefix_of_row), _pad(row_v, rows)], dim=1)
    if first_query:
        return _unpad(_attend(_pad(q, rows), keys, values, rows.bias, head_dim), rows)
    prefix_q, row_q = q.split(parts)
    prefix_out = _attend(_pad(prefix_q, prefixes), prefix_k, prefix_v, prefixes.bias, head_dim)
    row_out = _attend(_pad(row_q, rows), keys, values, rows.bias, head_dim)
    return torch.cat([_unpad(prefix_out, prefixes), _unpad(row_out, rows)])


def _attend(q_RLQ: Tensor, k_RSK: Tensor, v_RSK: Tensor, bias: Tensor | None, head_dim: int) -> Tensor:
    """Padded attention of scaled queries; Q and K are the widths of all query and all key-value heads.

    `bias` is (R or 1) x L x S and is added to the scores; without it attention is causal (L = S).
    """
    rows, length, width = q_RLQ.shape
    keys = k_RSK.shape[1]
    kv_heads = k_RSK.shape[2] // head_dim
    fold = width // k_RSK.shape[2]
    k = k_RSK.view(rows, keys, kv_heads, head_dim).transpose(1, 2)
    v = v_RSK.view(rows, keys, kv_heads, head_dim).transpose(1, 2)
    if bias is None or keys > EAGER_KEYS:
        q = q_RLQ.view(rows, length, kv_heads * fold, head_dim).transpose(1, 2)
        mask = None if bias is None else bias[:, None].to(q.dtype)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=bias is None, scale=1.0, enable_gqa=fold > 1
        )
        return out.transpose(1, 2).reshape(rows, length, width)
    q = q_RLQ.view(rows, length, kv_heads, fold, head_dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(rows * kv_heads, fold * length, head_dim)
    k, v = k.reshape(rows * kv_heads, keys, head_dim), v.reshape(rows * kv_heads, keys, head_dim)
    out = attend(q, k, v, bias).view(rows, kv_heads, fold, length, head_dim)
    return out.permute(0, 3, 1, 2, 4).reshape(rows, length, width)


def _rms_norm(norm: Any, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return rms_norm(x, norm.weight, norm.variance_epsilon, dtype)


def _pad(x_TD: Tensor, block: _Block) -> Tensor:
    return pad(x_TD, block.slots, block.where).view(*block.shape, -1)


def _unpad(x_RLD: Tensor, block: _Block) -> Tensor:
    return unpad(x_RLD.flatten(0, 1), block.slots, block.where, block.padding)
