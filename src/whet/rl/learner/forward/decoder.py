"""The forward pass that training runs: a `transformers` decoder's own modules, called over a `TokenLayout`.

Every parameter stays where `transformers` put it and every projection is called as a module, so PEFT's layers, names
and checkpoints work unchanged. What is ours is the order of work: tokens stay flat, what several sequences begin with
is computed once (`layout.py`, `attention.py`), and the last layer runs only where a token is trained. What families
differ in is read from the model's config, as the engine reads it; attention and residual dropout are not applied.

The feed-forward part of a layer with experts, for training: the router's choice, or the sampler's replayed.

Sampler and learner round differently, so near a tie they choose other experts, and the ratio of probabilities jumps
for a reason that no gradient removes. Replaying the sampler's choice keeps the ratio smooth; the router still
learns, through the weights of the experts that were chosen. The auxiliary loss that balances experts in pre-training is
not part of any loss here. Source: Rollout Routing Replay, Ma et al. 2025 (arXiv:2510.11370).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from whet.inference.architecture import Architecture, Rope, parse_architecture
from whet.inference.decoding.functions import ACTIVATIONS, mix_experts, route, turns
from whet.rl.learner.forward import compiled
from whet.rl.learner.forward.attention import Blocks, OrderedBlocks, attention, planner
from whet.rl.learner.forward.kernels import product_dtype, rms_norm, rotate, take
from whet.rl.learner.forward.layout import Block, TokenLayout

PLACES = 64
"""Where a CPU computes in bfloat16, tokens and predictors are padded to a multiple of this. Its library compiles code
for every new shape of a product and forgets the oldest: where no shape comes back, a tenth of the learner's time."""


LayerCall: TypeAlias = Callable[..., Tensor]
"""Computes a layer: takes what `run_layer` does."""


def hidden_states(
    model: nn.Module,
    ids_T: Tensor,
    layout: TokenLayout,
    *,
    experts_TLK: Tensor | None = None,
    recompute: bool = False,
    fused: bool = False,
    call_layer: LayerCall | None = None,
) -> Tensor:
    """Final hidden states of a layout's U predictors, [U or more, hidden]: where there are more, the rest are padding.

    `model` is the decoder without its output head.

    `experts_TLK` are those that each token is to go to in each of L layers, -1 where the router chooses. With
    `recompute` only the input of each layer is kept, and the layer computed again when its gradient is (activation
    checkpointing: Chen et al. 2016, arXiv:1604.06174); the random numbers of dropout are the same both times.
    `fused`: by the functions of `compiled.py` where it has them. `call_layer` calls `run_layer`, the default, in its
    own way.
    """
    modules: Any = model
    padding, _ = _padding(layout, _multiple(ids_T.device))
    x_TD = _embedded(modules.embed_tokens, F.pad(ids_T, (0, padding)))
    if experts_TLK is not None:
        experts_TLK = F.pad(experts_TLK, (0, 0, 0, 0, 0, padding), value=-1)
    plan = _plan(architecture(modules), layout, x_TD, experts_TLK, fused)
    last, call = len(modules.layers) - 1, call_layer or run_layer
    for number, layer in enumerate(modules.layers):
        x_TD = call(layer, x_TD, plan=plan, number=number, is_last=number == last, recompute=recompute)
    return _rms_norm(modules.norm, x_TD, plan)


def architecture(model: Any) -> Architecture:
    """That of a `transformers` decoder; read once from its config."""
    if (known := _ARCHITECTURES.get(model)) is None:
        known = _ARCHITECTURES[model] = parse_architecture(model.config.to_dict(), where="the model's config")
    return known


_ARCHITECTURES: WeakKeyDictionary[nn.Module, Architecture] = WeakKeyDictionary()


def _embedded(embed_tokens: nn.Module, ids_T: Tensor) -> Tensor:
    """In fp32, as are all sums of layers. Where a matrix in fewer bits is trained, the gradients of equal tokens are
    added up in fp32, too."""
    weight: Any = embed_tokens.weight
    if not weight.requires_grad or weight.dtype == torch.float32:
        rows_TD: Tensor = embed_tokens(ids_T)
        return rows_TD.float()
    ids_U, place_T = ids_T.unique(return_inverse=True)
    rows_UD: Tensor = embed_tokens(ids_U)
    return rows_UD.float().index_select(0, place_T)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A layout as tensors; made once per micro-batch."""

    arch: Architecture
    everything: dict[int | None, Blocks]  # by the window of a layer
    speaking: dict[int | None, Blocks]
    silent_tokens: int
    multiple: int  # what rows of matrix products are a multiple of
    predictors: Tensor
    turns: dict[Rope, tuple[Tensor, Tensor]]  # cosines and sines of each token, T x 1 x pairs
    experts_TLK: Tensor | None
    dtype: torch.dtype  # of what goes into matrix products
    fused: bool  # by the functions of `compiled.py`


def _multiple(device: torch.device) -> int:
    return PLACES if device.type == "cpu" and product_dtype(device) != torch.float32 else 1


def _padding(layout: TokenLayout, multiple: int) -> tuple[int, int]:
    """Tokens to add behind those of a layout, and how many of these count as predictors: they carry no gradient."""
    padding, predictors = (-len(places) % multiple for places in (layout.tokens, layout.predictors))
    return (padding if padding >= predictors else padding + multiple), predictors


def _plan(arch: Architecture, layout: TokenLayout, like: Tensor, experts_TLK: Tensor | None, fused: bool) -> _Plan:
    device = like.device
    real, tokens, multiple = len(layout.tokens), len(like), _multiple(device)
    _, padded_predictors = _padding(layout, multiple)

    plan_blocks = planner(tokens, arch.num_heads, arch.num_kv_heads, arch.head_dim, device)
    rows_T = None if layout.rows is None else torch.from_numpy(layout.rows).to(device)

    def planned(blocks: tuple[Block, ...], window: int | None) -> Blocks:
        made = plan_blocks(blocks, window)
        return made if rows_T is None else OrderedBlocks(made, rows_T, rows_T.argsort())

    windows = dict.fromkeys(arch.windows)
    positions_T = F.pad(torch.from_numpy(layout.positions).to(device), (0, tokens - real))
    predictors_U = torch.from_numpy(layout.predictors).to(device)
    turned = {rope: turns(rope, positions_T) for rope in dict.fromkeys(arch.ropes) if rope is not None}
    return _Plan(
        arch=arch,
        everything={window: planned((*layout.silent, *layout.speaking), window) for window in windows},
        speaking={window: planned(layout.speaking, window) for window in windows},
        silent_tokens=sum(len(block.where) for block in layout.silent),
        multiple=multiple,
        predictors=torch.cat([predictors_U, torch.arange(real, real + padded_predictors, device=device)]),
        turns={rope: (cos.unsqueeze(1), sin.unsqueeze(1)) for rope, (cos, sin) in turned.items()},
        experts_TLK=experts_TLK,
        dtype=product_dtype(device),
        fused=fused,
    )


def run_layer(layer: Any, x_TD: Tensor, *, plan: _Plan, number: int, is_last: bool, recompute: bool) -> Tensor:
    """What a decoder layer makes of T tokens; see `hidden_states`."""
    run = partial(_layer, layer, plan=plan, number=number, is_last=is_last)
    if not (recompute and torch.is_grad_enabled()):
        return run(x_TD)
    halves = plan.dtype == torch.bfloat16
    with saved_tensors_hooks(_half, _whole) if halves else nullcontext():  # of the input: what is inside has others
        computed_TD: Tensor = checkpoint(run, x_TD, use_reentrant=False)
    return computed_TD


def _half(x: Tensor) -> tuple[Tensor, bool]:
    """Kept of a layer's input where its products are in bfloat16: half the bytes, rounded as products round it."""
    return (x.bfloat16() if x.dtype == torch.float32 else x), x.requires_grad


def _whole(kept: tuple[Tensor, bool]) -> Tensor:
    half, differentiated = kept
    return (half.float() if half.dtype == torch.bfloat16 else half).requires_grad_(differentiated)


def _layer(layer: Any, x_TD: Tensor, *, plan: _Plan, number: int, is_last: bool) -> Tensor:
    # What the last layer would make of tokens that predict nothing is not needed: there they only supply keys and
    # values.
    norms = plan.arch.norms
    mixed_TD = _attention(layer.self_attn, _normed(layer, norms.attention_in, x_TD, plan), plan, number, is_last)
    replayed_TK = None if plan.experts_TLK is None else plan.experts_TLK[:, number]
    if is_last:
        mixed_TD = take(mixed_TD, plan.predictors - plan.silent_tokens)
        x_TD = take(x_TD, plan.predictors)
        replayed_TK = None if replayed_TK is None else replayed_TK.index_select(0, plan.predictors)
    mixed_TD = layer.self_attn.o_proj(mixed_TD)
    x_TD = x_TD + _after(layer, norms.attention_out, mixed_TD, plan)
    fed_TD = _feed_forward(layer.mlp, _normed(layer, norms.feed_in, x_TD, plan), plan, replayed_TK)
    out_TD: Tensor = x_TD + _after(layer, norms.feed_out, fed_TD, plan)
    return out_TD


def _feed_forward(mlp: Any, x_TD: Tensor, plan: _Plan, replayed_TK: Tensor | None) -> Tensor:
    activation = plan.arch.activation
    if hasattr(mlp, "experts"):
        return experts_forward(mlp, x_TD, replayed_TK)
    if plan.arch.fused_gate_up:
        gate_TI, up_TI = mlp.gate_up_proj(x_TD).chunk(2, dim=-1)
    else:
        gate_TI, up_TI = mlp.gate_proj(x_TD), mlp.up_proj(x_TD)
    gated_TI = compiled.gated(gate_TI, up_TI, activation) if plan.fused else ACTIVATIONS[activation](gate_TI) * up_TI
    fed_TD: Tensor = mlp.down_proj(gated_TI)
    return fed_TD


def _attention(part: Any, x_TD: Tensor, plan: _Plan, number: int, is_last: bool) -> Tensor:
    """Attention's output before `o_proj`; in the last layer without that of silent blocks."""
    arch, window = plan.arch, plan.arch.windows[number]
    first, blocks = (plan.silent_tokens, plan.speaking[window]) if is_last else (0, plan.everything[window])
    q, k, v = _queries_keys_values(part, x_TD, plan, first)
    if arch.qk_norm == "width":
        q, k = (_rms_norm(norm, x, plan) for norm, x in ((part.q_norm, q), (part.k_norm, k)))
    q, k, v = (x.unflatten(-1, (-1, arch.head_dim)) for x in (q, k, v))
    if arch.qk_norm == "head":
        q, k = _rms_norm(part.q_norm, q, plan), _rms_norm(part.k_norm, k, plan)
    if (rope := arch.ropes[number]) is None:
        return attention(q * arch.attention_scale, k, v, blocks)
    cos, sin = plan.turns[rope]
    scaled = cos[first:] * arch.attention_scale, sin[first:] * arch.attention_scale
    turn = compiled.rotate if plan.fused else rotate
    q = turn(q, *scaled, v.dtype, rest=arch.attention_scale, interleaved=arch.interleaved)
    return attention(q, turn(k, cos, sin, v.dtype, interleaved=arch.interleaved), v, blocks)


def _queries_keys_values(part: Any, x_TD: Tensor, plan: _Plan, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries from token `first` on, keys and values of all."""
    arch = plan.arch
    if arch.fused_qkv:
        keys = arch.num_kv_heads * arch.head_dim
        q, k, v = part.qkv_proj(x_TD).split([arch.num_heads * arch.head_dim, keys, keys], dim=-1)
        return q[first:], k, v
    excess = first % plan.multiple
    return part.q_proj(x_TD[first - excess :])[excess:], part.k_proj(x_TD), part.v_proj(x_TD)


def _normed(layer: Any, name: str | None, x: Tensor, plan: _Plan) -> Tensor:
    """By a norm of the layer, in the dtype of products; where the family has none there, x in that dtype."""
    return x.to(plan.dtype) if name is None else _rms_norm(getattr(layer, name), x, plan, plan.dtype)


def _after(layer: Any, name: str | None, x: Tensor, plan: _Plan) -> Tensor:
    """What is added to the sum of layers: x by a norm of the layer, or x itself."""
    return x if name is None else _rms_norm(getattr(layer, name), x, plan)


def _rms_norm(norm: Any, x: Tensor, plan: _Plan, dtype: torch.dtype = torch.float32) -> Tensor:
    weight = norm.weight.float()  # FSDP2 rounds vectors, too, where it rounds matrices
    if plan.arch.gain_offset:
        weight = weight + plan.arch.gain_offset
    return (compiled.rms_norm if plan.fused else rms_norm)(x, weight, plan.arch.norm_eps, dtype)


def experts_forward(block: Any, x_TD: Tensor, replayed_TK: Tensor | None) -> Tensor:
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
