"""Attention over the blocks of a layout: heads are gathered into padded rectangles, and what comes out is flat again.

What several runs read is gathered once for each of them; its gradient is the sum over those that read it. On a GPU
with a kernel for it, runs are not padded at all (`Runs`).

`Runs`: attention by a GPU's kernel for sequences of many lengths: no padding, no mask, no scores.

    run          reads p q r s t, of which s t are its own      queries  s t        keys  p q r s t
    causal       aligned at the last query and the last key: s sees p q r s, and t all five

So what a run reads before its own needs no second part that would be combined by logsumexp, whose gradient torch's
kernel does not have either. Flash attention: Dao 2023 (arXiv:2307.08691). The padded blocks compute the same
everywhere, and are what this is tested against.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from whet.rl.learner.config import EAGER_KEYS
from whet.rl.learner.forward.kernels import attend, attend_long, gather, product_dtype, read
from whet.rl.learner.forward.layout import Block, Index

MASKED = -1e9
DENSE_PLACES = 1 << 24
"""On a CPU a mask of at most so many numbers is made: 64 MB. Where it would be larger, scores are computed piece by
piece; so they are on other devices, where torch's own attention with a mask may hold all of them."""

SCORES_AT_ONCE = 1 << 20
"""Scores of a piece: 4 MB, small enough to stay in a CPU's last-level cache."""

CUDA_SCORES_AT_ONCE = 1 << 26
"""Scores of a piece on a GPU: 256 MB, enough rows to keep its matrix units busy."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBlock:
    """A `Block` as tensors. Indices count heads of tokens, so that what is gathered is ready for matrix products."""

    shape: tuple[int, int, int]  # runs R, queries L, keys S
    tokens: int  # of its own
    queries: Tensor  # R x heads x L, flat: which of its own heads is at a position
    where: Tensor  # for each of its own heads, its position among those
    padding: Tensor  # places among those that hold no token
    keys: Tensor  # R x key-value heads x S, flat: which of all heads is read
    readers: Tensor  # places of `keys`, ordered by the head they read; those of padding are left out
    first_reader: Tensor  # for each of all heads, where its readers begin
    bias: Tensor | None  # (R or 1) x L x S, added to scores; None, without `reach`: a query sees its run up to itself
    reach: Tensor | None  # R x L; instead of a bias that would be too large: how many keys a query sees
    last: Index | None  # with `reach`: L; how many any row sees
    window: int | None  # with `reach`: how many of those a query sees at most, the last

    @classmethod
    def of(
        cls,
        block: Block,
        tokens: int,
        heads: int,
        kv_heads: int,
        device: torch.device,
        window: int | None = None,
    ) -> Self:
        """A block of a micro-batch of so many `tokens`; with a `window` a query sees that many keys at most."""
        (rows, length), keys = block.queries.shape, block.keys.shape[1]
        head_H, head_K = np.arange(heads), np.arange(kv_heads)[:, None]
        places_RL = heads * length * np.arange(rows)[:, None] + np.arange(length)

        def of_all_heads(places: Index) -> Tensor:
            return tensor(places_RL.reshape(-1)[places, None] + head_H * length)

        def tensor(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array.reshape(-1)).to(device)

        read_RKS = block.keys[:, None] * kv_heads + head_K
        real_RKS = np.broadcast_to(_reach(block)[:, None, -1:] >= np.arange(keys), read_RKS.shape)
        places = np.flatnonzero(real_RKS)
        readings = read_RKS.reshape(-1)[places]
        counts = np.bincount(readings, minlength=tokens * kv_heads)
        alone = not block.before.any()
        causal = alone and window is None
        bias = reach = last = None
        dense = DENSE_PLACES if device.type == "cpu" else 0
        if keys > EAGER_KEYS and not (_causal_is_fused(device) if causal else rows * length * keys <= dense):
            reach_RL = _reach(block) + 1
            reach, last = torch.from_numpy(reach_RL).to(device), reach_RL.max(axis=0)
        elif keys <= EAGER_KEYS or not causal:  # a mask of long runs would be larger than the model
            bias = torch.from_numpy(_bias(block, alone, window)).to(device)
        return cls(
            shape=(rows, length, keys),
            tokens=len(block.where),
            queries=tensor(block.queries[:, None] * heads + head_H[:, None]),
            where=of_all_heads(block.where),
            padding=of_all_heads(block.padding),
            keys=tensor(read_RKS),
            readers=tensor(places[np.argsort(readings, kind="stable")]),
            first_reader=tensor(np.cumsum(counts) - counts),
            bias=bias,
            reach=reach,
            last=last,
            window=window,
        )


@dataclass(frozen=True, slots=True, eq=False)
class OrderedBlocks:
    """Blocks of tokens that do not lie block after block."""

    blocks: tuple[AttentionBlock, ...] | Runs
    rows: Tensor  # T; the tokens in the order of blocks, then those of none
    back: Tensor  # T; each token's place in that order


Blocks: TypeAlias = "tuple[AttentionBlock, ...] | Runs | OrderedBlocks"


def planner(
    tokens: int, heads: int, kv_heads: int, head_dim: int, device: torch.device
) -> Callable[[Sequence[Block], int | None], tuple[AttentionBlock, ...] | Runs]:
    """Blocks of a micro-batch, and a window, as `attention` takes them on this device: for the kernel of a GPU where
    there is one, else as padded rectangles, each made once."""
    if has_kernel(device, product_dtype(device), head_dim):
        return lambda blocks, window: Runs.of(blocks, tokens, device, window)

    @cache
    def padded(block: Block, window: int | None) -> AttentionBlock:
        return AttentionBlock.of(block, tokens, heads, kv_heads, device, window)

    def all_padded(blocks: Sequence[Block], window: int | None) -> tuple[AttentionBlock, ...]:
        """A block that is no longer than a window is as one without."""
        return tuple(padded(b, None if window is None or window >= b.keys.shape[1] else window) for b in blocks)

    return all_padded


def attention(q: Tensor, k: Tensor, v: Tensor, blocks: Blocks) -> Tensor:
    """What every query of `blocks` makes of what it reads of the keys; T x heads x width all of them.

    Queries are scaled already, and are those of the blocks' own tokens, in their order; keys those of all tokens.
    Queries behind those of the blocks are padding, which attends to nothing: zeros.
    """
    if isinstance(blocks, OrderedBlocks):
        ordered = attention(gather(q, blocks.rows, blocks.back), k, v, blocks.blocks)
        return gather(ordered, blocks.back, blocks.rows)
    if isinstance(blocks, Runs):
        return attend_runs(q, k, v, blocks)
    owned = [block.tokens for block in blocks]
    *parts, padding = q.split([*owned, len(q) - sum(owned)])
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    mixed = [_attend(part.flatten(0, 1), k, v, block) for part, block in zip(parts, blocks, strict=True)]
    return torch.cat([*mixed, torch.zeros_like(padding).flatten(1)])


def _attend(q: Tensor, k: Tensor, v: Tensor, block: AttentionBlock) -> Tensor:
    rows, length, keys = block.shape
    width = q.shape[-1]
    q = gather(q, block.queries, block.where)
    k, v = (read(x, block.keys, block.readers, block.first_reader) for x in (k, v))
    if block.reach is not None and block.last is not None:
        k, v = k.view(-1, keys, width), v.view(-1, keys, width)
        at_once = CUDA_SCORES_AT_ONCE if q.is_cuda else SCORES_AT_ONCE
        out = attend_long(q.view(len(k), -1, width), k, v, block.reach, block.last.tolist(), at_once, block.window)
    elif block.bias is None or keys > EAGER_KEYS:
        q, k, v = q.view(rows, -1, length, width), k.view(rows, -1, keys, width), v.view(rows, -1, keys, width)
        mask = None if block.bias is None else block.bias[:, None].to(q.dtype)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=q.shape[1] > k.shape[1]
        )
    else:  # the query heads of a key-value head are one product
        k, v = k.view(-1, keys, width), v.view(-1, keys, width)
        out = attend(q.view(len(k), -1, width), k, v, block.bias)
    return gather(out.reshape(-1, width), block.where, block.queries, block.padding).view(block.tokens, -1)


def _causal_is_fused(device: torch.device) -> bool:
    """Whether torch's own attention holds no scores, where a run reads nothing before its own: CUDA's does so in half
    precision, where query heads share a key-value head."""
    return device.type == "cpu" or (device.type == "cuda" and product_dtype(device) != torch.float32)


def _reach(block: Block) -> Index:
    """R x L; the last key that a query sees. Padding sees what the last query of its run does."""
    queries = np.arange(block.queries.shape[1])
    reach_RL: Index = block.before[:, None] + np.minimum(queries, block.lengths[:, None] - 1)
    return reach_RL


def _bias(block: Block, alone: bool, window: int | None) -> NDArray[np.float32]:
    """Where no run reads anything before its own, one mask is that of all."""
    reach_RL = np.arange(block.queries.shape[1])[None] if alone else _reach(block)
    keys_S = np.arange(block.keys.shape[1])
    hidden_RLS = keys_S > reach_RL[:, :, None]
    if window is not None:
        hidden_RLS |= keys_S <= reach_RL[:, :, None] - window
    bias_RLS: NDArray[np.float32] = np.where(hidden_RLS, np.float32(MASKED), np.float32(0))
    return bias_RLS


WIDEST_HEAD, HEAD_MULTIPLE = 256, 8
AMPERE = (8, 0)
"""The oldest kind of GPU that the kernel is for, by its compute capability."""


def has_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether torch's kernel computes heads of this width in this dtype on this device."""
    fits = head_dim <= WIDEST_HEAD and head_dim % HEAD_MULTIPLE == 0 and dtype in (torch.bfloat16, torch.float16)
    return fits and device.type == "cuda" and _is_there(device)


@cache
def _is_there(device: torch.device) -> bool:
    """A build of torch for CUDA that has it, with key-value heads that query heads share, and a GPU that runs it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    shares_heads = "enable_gqa" in inspect.signature(varlen_attn).parameters
    return shares_heads and torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= AMPERE


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The runs of blocks, one after the other, as tensors."""

    tokens: int  # of their own, which are the queries
    query_ends: Tensor  # int32: 0, and where the queries of each run end
    key_ends: Tensor
    most_queries: int
    most_keys: int
    span: slice | None  # the tokens that are read, where they follow each other and each is read by one run
    keys: Tensor  # otherwise which token is read at each place,
    readers: Tensor  # the places by the token that they read,
    first_reader: Tensor  # and where those of each of all tokens begin
    window: int | None  # how many keys a query sees at most, the last

    @classmethod
    def of(cls, blocks: Sequence[Block], tokens: int, device: torch.device, window: int | None) -> Self:
        """Of a micro-batch of so many `tokens`."""
        lengths = np.concatenate([block.lengths for block in blocks])
        ends = np.concatenate([block.before + block.lengths for block in blocks])
        read_S = np.concatenate(
            [keys[:end] for block in blocks for keys, end in zip(block.keys, block.before + block.lengths, strict=True)]
        )
        follow = bool((np.diff(read_S) == 1).all())

        def tensor(array: NDArray[Any], dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.from_numpy(array).to(device, dtype)

        counts = np.bincount(read_S, minlength=tokens)
        return cls(
            tokens=int(lengths.sum()),
            query_ends=tensor(np.concatenate([[0], lengths.cumsum()]), torch.int32),
            key_ends=tensor(np.concatenate([[0], ends.cumsum()]), torch.int32),
            most_queries=int(lengths.max()),
            most_keys=int(ends.max()),
            span=slice(int(read_S[0]), int(read_S[-1]) + 1) if follow else None,
            keys=tensor(read_S),
            readers=tensor(np.argsort(read_S, kind="stable")),
            first_reader=tensor(np.cumsum(counts) - counts),
            window=None if window is None or window >= ends.max() else window,
        )

    def read(self, x: Tensor) -> Tensor:
        """Of T x heads x width, what the runs read, one after the other."""
        if self.span is not None:
            return x[self.span]
        return read(x.flatten(1), self.keys, self.readers, self.first_reader).view(-1, *x.shape[1:])


def attend_runs(q: Tensor, k: Tensor, v: Tensor, runs: Runs) -> Tensor:
    """What `attention.attention` computes, by the kernel."""
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        q[: runs.tokens].to(v.dtype),
        runs.read(k),
        runs.read(v),
        runs.query_ends,
        runs.key_ends,
        runs.most_queries,
        runs.most_keys,
        scale=1.0,
        window_size=(-1 if runs.window is None else runs.window - 1, 0),
        enable_gqa=q.shape[1] > k.shape[1],
    )
    assert isinstance(out, Tensor)
    return torch.cat([out, torch.zeros_like(q[runs.tokens :], dtype=v.dtype)]).flatten(1)
