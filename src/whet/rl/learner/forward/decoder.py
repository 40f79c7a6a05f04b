"""The forward pass that training runs: a `transformers` decoder's own modules, called over a `TokenLayout`.

Every parameter stays where `transformers` put it and every projection is called as a module, so PEFT's layers, names
and checkpoints work unchanged. What is ours is the order of work: tokens stay flat, what several sequences begin with
is computed once (`layout.py`, `attention.py`), and the last layer runs only where a token is trained. Written for
Qwen3- and Llama-style decoders, with or without experts; attention dropout is not applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whet.rl.learner.forward import moe
from whet.rl.learner.forward.attention import AttentionBlock, attention
from whet.rl.learner.forward.kernels import product_dtype, rms_norm, rotate, take
from whet.rl.learner.forward.layout import TokenLayout

PLACES = 64
"""Where a CPU computes in bfloat16, tokens and predictors are padded to a multiple of this. Its library compiles code
for every new shape of a product and forgets the oldest: where no shape comes back, a tenth of the learner's time."""


def hidden_states(
    model: nn.Module, ids_T: Tensor, layout: TokenLayout, *, experts_TLK: Tensor | None = None, recompute: bool = False
) -> Tensor:
    """Final hidden states of a layout's U predictors, [U or more, hidden]: where there are more, the rest are padding.

    `model` is the decoder without its output head.

    `experts_TLK` are those that each token is to go to in each of L layers, -1 where the router chooses. With
    `recompute` only the input of each layer is kept, and the layer computed again when its gradient is (activation
    checkpointing: Chen et al. 2016, arXiv:1604.06174); the random numbers of dropout are the same both times.
    """
    modules: Any = model
    padding, _ = _padding(layout, _multiple(ids_T.device))
    x_TD = modules.embed_tokens(F.pad(ids_T, (0, padding))).float()  # sums of layers are fp32
    if experts_TLK is not None:
        experts_TLK = F.pad(experts_TLK, (0, 0, 0, 0, 0, padding), value=-1)
    plan = _plan(modules, layout, x_TD, experts_TLK)
    last = len(modules.layers) - 1
    for number, layer in enumerate(modules.layers):
        run = partial(_layer, layer, plan=plan, number=number, is_last=number == last)
        x_TD = checkpoint(run, x_TD, use_reentrant=False) if recompute and torch.is_grad_enabled() else run(x_TD)
    return _rms_norm(modules.norm, x_TD)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A layout as tensors; made once per micro-batch."""

    silent: tuple[AttentionBlock, ...]
    speaking: tuple[AttentionBlock, ...]
    silent_tokens: int
    multiple: int  # what rows of matrix products are a multiple of
    predictors: Tensor
    cos: Tensor
    sin: Tensor
    experts_TLK: Tensor | None
    dtype: torch.dtype  # of what goes into matrix products


def _multiple(device: torch.device) -> int:
    return PLACES if device.type == "cpu" and product_dtype(device) != torch.float32 else 1


def _padding(layout: TokenLayout, multiple: int) -> tuple[int, int]:
    """Tokens to add behind those of a layout, and how many of these count as predictors: they carry no gradient."""
    padding, predictors = (-len(places) % multiple for places in (layout.tokens, layout.predictors))
    return (padding if padding >= predictors else padding + multiple), predictors


def _plan(modules: Any, layout: TokenLayout, like: Tensor, experts_TLK: Tensor | None) -> _Plan:
    device, config = like.device, modules.config
    real, tokens, multiple = len(layout.tokens), len(like), _multiple(like.device)
    _, padded_predictors = _padding(layout, multiple)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    silent, speaking = (
        tuple(AttentionBlock.of(block, tokens, heads, kv_heads, device) for block in blocks)
        for blocks in (layout.silent, layout.speaking)
    )
    positions_T = F.pad(torch.from_numpy(layout.positions).to(device), (0, tokens - real))
    predictors_U = torch.from_numpy(layout.predictors).to(device)
    cos, sin = modules.rotary_emb(like[None, :1].float(), positions_T[None])
    return _Plan(
        silent=silent,
        speaking=speaking,
        silent_tokens=sum(block.tokens for block in silent),
        multiple=multiple,
        predictors=torch.cat([predictors_U, torch.arange(real, real + padded_predictors, device=device)]),
        cos=cos[0].chunk(2, dim=-1)[0].unsqueeze(1),
        sin=sin[0].chunk(2, dim=-1)[0].unsqueeze(1),
        experts_TLK=experts_TLK,
        dtype=product_dtype(device),
    )


def _layer(layer: Any, x_TD: Tensor, *, plan: _Plan, number: int, is_last: bool) -> Tensor:
    # What the last layer would make of tokens that predict nothing is not needed: there they only supply keys and
    # values.
    mixed_TD = _attention(layer.self_attn, _rms_norm(layer.input_layernorm, x_TD, plan.dtype), plan, is_last)
    replayed_TK = None if plan.experts_TLK is None else plan.experts_TLK[:, number]
    if is_last:
        mixed_TD = take(mixed_TD, plan.predictors - plan.silent_tokens)
        x_TD = take(x_TD, plan.predictors)
        replayed_TK = None if replayed_TK is None else replayed_TK.index_select(0, plan.predictors)
    x_TD = x_TD + layer.self_attn.o_proj(mixed_TD)
    mlp = layer.mlp
    normed_TD = _rms_norm(layer.post_attention_layernorm, x_TD, plan.dtype)
    if hasattr(mlp, "experts"):
        return x_TD + moe.feed_forward(mlp, normed_TD, replayed_TK)
    out_TD: Tensor = x_TD + mlp.down_proj(mlp.act_fn(mlp.gate_proj(normed_TD)) * mlp.up_proj(normed_TD))
    return out_TD


def _attention(part: Any, x_TD: Tensor, plan: _Plan, is_last: bool) -> Tensor:
    """Attention's output before `o_proj`; in the last layer without that of silent blocks."""
    first, blocks = (plan.silent_tokens, plan.speaking) if is_last else (0, plan.silent + plan.speaking)
    excess = first % plan.multiple
    q_TD = part.q_proj(x_TD[first - excess :])[excess:]
    q, k, v = (x.unflatten(-1, (-1, part.head_dim)) for x in (q_TD, part.k_proj(x_TD), part.v_proj(x_TD)))
    if hasattr(part, "q_norm"):
        q, k = _rms_norm(part.q_norm, q), _rms_norm(part.k_norm, k)
    q = rotate(q, plan.cos[first:] * part.scaling, plan.sin[first:] * part.scaling, v.dtype)
    return attention(q, rotate(k, plan.cos, plan.sin, v.dtype), v, blocks)


def _rms_norm(norm: Any, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return rms_norm(x, norm.weight, norm.variance_epsilon, dtype)
