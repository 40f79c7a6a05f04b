"""Attention over the runs of a layout by a GPU's kernel for sequences of many lengths: no padding, no mask, no scores.

    run          reads p q r s t, of which s t are its own      queries  s t        keys  p q r s t
    causal       aligned at the last query and the last key: s sees p q r s, and t all five

So what a run reads before its own needs no second part that would be combined by logsumexp, whose gradient torch's
kernel does not have either. Flash attention: Dao 2023 (arXiv:2307.08691). The blocks of `attention.py` compute the same
everywhere, and are what this is tested against.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.rl.learner.forward.kernels import read
from whet.rl.learner.forward.layout import Block

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
