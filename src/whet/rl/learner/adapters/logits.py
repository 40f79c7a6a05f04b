"""log p of targets under the base's output matrix and what adapters add to it, a chunk of logits at a time.

A chunk is whole pieces, or a part of one that is larger: how a piece is divided depends on the piece alone. Where
there are several chunks, each is computed again for its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whet.rl.learner.adapters.layers import AdaptedLinear, LayerPart
from whet.rl.learner.forward.layout import Index
from whet.rl.learner.forward.logprobs import elements


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """Of one piece: N targets, and the row of the piece that predicts each."""

    rows_N: Index
    tokens_N: Index


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    begin: int
    spans: list[int]  # rows of the pieces in it, or of the part of one
    pieces: list[int]
    first: int  # the first row of the piece that is in it

    @property
    def end(self) -> int:
        return self.begin + sum(self.spans)


def target_logprobs(
    head: AdaptedLinear, hidden_TD: Tensor, spans: Sequence[int], targets: Sequence[Targets], tile: int
) -> list[Tensor]:
    """For each piece of so many rows, log p of its targets, [N] float32. `head` holds the parts of this pass."""
    parts = {part.piece: part for part in head.parts}
    chunks = list(_chunks(spans, max(1, elements(hidden_TD) // head.sizes[1] // tile) * tile))
    again = len(chunks) > 1 and torch.is_grad_enabled()
    outputs: list[list[Tensor]] = [[] for _ in spans]
    orders: list[list[Index]] = [[] for _ in spans]
    for chunk in chunks:
        rows, tokens, counts, at = [], [], [], 0
        for piece, span in zip(chunk.pieces, chunk.spans, strict=True):
            own = targets[piece]
            inside = np.flatnonzero((own.rows_N >= chunk.first) & (own.rows_N < chunk.first + span))
            rows.append(own.rows_N[inside] - chunk.first + at)
            tokens.append(own.tokens_N[inside])
            counts.append(len(inside))
            orders[piece].append(inside)
            at += span
        here = [_moved(parts[p], number, chunk.first) for number, p in enumerate(chunk.pieces) if p in parts]
        arguments: tuple[Any, ...] = (
            head,
            hidden_TD[chunk.begin : chunk.end],
            here,
            chunk.spans,
            *(torch.from_numpy(np.concatenate(each)).to(hidden_TD.device) for each in (rows, tokens)),
        )
        out_N: Tensor = (
            checkpoint(_of_chunk, *arguments, use_reentrant=False, preserve_rng_state=False)
            if again
            else _of_chunk(*arguments)
        )
        for piece, out in zip(chunk.pieces, out_N.split(counts), strict=True):
            outputs[piece].append(out)
    return [
        own[0] if len(own) == 1 else torch.cat(own)[torch.from_numpy(np.argsort(np.concatenate(order)))]
        for own, order in zip(outputs, orders, strict=True)
    ]


def _chunks(spans: Sequence[int], most: int) -> Iterator[_Chunk]:
    begin, together, pieces = 0, list[int](), list[int]()
    for piece, span in enumerate(spans):
        if together and sum(together) + span > most:
            yield _Chunk(begin, together, pieces, 0)
            begin, together, pieces = begin + sum(together), [], []
        if span > most:
            for first in range(0, span, most):
                size = min(most, span - first)
                yield _Chunk(begin, [size], [piece], first)
                begin += size
        else:
            together.append(span)
            pieces.append(piece)
    if together:
        yield _Chunk(begin, together, pieces, 0)


def _moved(part: LayerPart, piece: int, first: int) -> LayerPart:
    dropout = part.dropout
    if dropout is not None and first:
        dropout = replace(dropout, key=f"{dropout.key} {first}")
    return replace(part, piece=piece, dropout=dropout)


def _of_chunk(
    head: AdaptedLinear, hidden_CD: Tensor, parts: list[LayerPart], spans: list[int], rows_N: Tensor, tokens_N: Tensor
) -> Tensor:
    result: Tensor = _TargetLogprobs.apply(  # type: ignore[no-untyped-call]
        head.product(hidden_CD, parts, spans).float(), rows_N, tokens_N
    )
    return result


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_CV: Tensor, rows_N: Tensor, tokens_N: Tensor) -> Tensor:
        logs_CV = logits_CV.log_softmax(-1)
        place_N = rows_N * logs_CV.shape[1] + tokens_N
        ctx.save_for_backward(logs_CV, rows_N, place_N)
        return logs_CV.view(-1).index_select(0, place_N)

    @staticmethod
    def backward(ctx: Any, slope_N: Tensor) -> tuple[Tensor, None, None]:
        logs_CV, rows_N, place_N = ctx.saved_tensors
        slope_C = slope_N.new_zeros(len(logs_CV)).index_add_(0, rows_N, slope_N)
        grad_CV = logs_CV.exp().mul_(slope_C.neg_()[:, None])
        grad_CV.view(-1).index_add_(0, place_N, slope_N)
        return grad_CV, None, None
