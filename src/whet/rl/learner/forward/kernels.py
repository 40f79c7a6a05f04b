"""Small differentiable operations in fewer passes over memory than autograd makes of their parts.

On a CPU a small model spends more time in such operations than in matrix products. Every backward is written out by
hand and tested against autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def product_dtype(device: torch.device) -> torch.dtype:
    """What matrix products are made in: autocast's dtype, or fp32."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else torch.float32


def rms_norm(x: Tensor, weight_D: Tensor, eps: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension D, computed in fp32 and given in `dtype`."""
    return _call(_RmsNorm, x, weight_D, eps, dtype)


def rotate(
    x_THD: Tensor,
    cos_T1F: Tensor,
    sin_T1F: Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    rest: float = 1.0,
    interleaved: bool = False,
) -> Tensor:
    """Rotary position embedding of the first 2 F of D dimensions; the others are multiplied with `rest`.

    A pair that turns are dimensions F apart, or neighbours where it is `interleaved`, as `transformers` has both.
    """
    return _call(_Rotate, x_THD, cos_T1F, sin_T1F, dtype, rest, interleaved)


def attend(q_BQD: Tensor, k_BSD: Tensor, v_BSD: Tensor, bias_RLS: Tensor) -> Tensor:
    """softmax(q @ k.T + bias) @ v. There are as many queries, B x Q, as R rows x heads x L; one bias may serve all."""
    return _call(_Attend, q_BQD, k_BSD, v_BSD, bias_RLS)


def attend_long(
    q_BQD: Tensor,
    k_BSD: Tensor,
    v_BSD: Tensor,
    reach_RL: Tensor,
    last: Sequence[int],
    scores: int,
    window: int | None = None,
) -> Tensor:
    """What `attend` computes, without a mask and without ever holding the scores of all queries: piece by piece, each
    of so many `scores` at most, and again in the backward pass.

    Query l of row r sees the first `reach_RL[r, l]` keys; `last[l]` is the largest of its column. With a `window` it
    sees so many of them at most, the last. After Rabe and Staats 2021 (arXiv:2112.05682).
    """
    return _call(_AttendLong, q_BQD, k_BSD, v_BSD, reach_RL, last, scores, window)


def take(x_ND: Tensor, unique: Tensor) -> Tensor:
    """Some rows of x, none of them twice, which makes the way back a copy (autograd's own adds up one by one)."""
    return _call(_Take, x_ND, unique)


def read(x_ND: Tensor, index: Tensor, readers: Tensor, first_reader: Tensor) -> Tensor:
    """Rows `index` of x, as often as they are read. The gradient of row i is the sum of those of its readers: places of
    `index`, from `readers[first_reader[i]]` to where those of the next row begin; places that are not among them get
    none. Far faster than adding them up one by one, as autograd does."""
    return _call(_Read, x_ND, index, readers, first_reader)


def gather(x_ND: Tensor, index: Tensor, back: Tensor, unread: Tensor | None = None) -> Tensor:
    """Rows `index` of x, of which one at most carries gradient for each row of x: the gradient is rows `back` of that
    of the result, and zero for the rows `unread`. So flat tokens become rows of a rectangle (see `layout.Block`) and
    flat again, with a copy in both directions (autograd's own scatter-add is slow)."""
    return _call(_Gather, x_ND, index, back, unread)


def _call(function: Any, *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = x.float()
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight_D, scale)
        return torch.mul(x, scale).mul_(weight_D).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, weight_D, scale = ctx.saved_tensors
        grad = grad.float()
        unit = x * scale
        product = grad * unit
        grad_weight_D = product.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        along = (product @ weight_D).unsqueeze(-1)
        grad_x = torch.mul(grad, weight_D, out=product).addcmul_(unit, along, value=-1 / x.shape[-1]).mul_(scale)
        return grad_x, grad_weight_D, None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, rest: float, interleaved: bool
    ) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.rest, ctx.interleaved = rest, interleaved
        return _turn(x, cos, sin, 1, rest, interleaved).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad.float(), cos, sin, -1, ctx.rest, ctx.interleaved), None, None, None, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, direction: int, rest: float, interleaved: bool) -> Tensor:
    pairs = cos.shape[-1]
    halves = slice(pairs), slice(pairs, 2 * pairs)
    one, other = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else halves
    first, second = x[..., one], x[..., other]
    out = torch.empty(x.shape, dtype=cos.dtype, device=x.device)
    torch.mul(first, cos, out=out[..., one]).addcmul_(second, sin, value=-direction)
    torch.mul(second, cos, out=out[..., other]).addcmul_(first, sin, value=direction)
    if x.shape[-1] > 2 * pairs:
        torch.mul(x[..., 2 * pairs :], rest, out=out[..., 2 * pairs :])
    return out


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias_RLS: Tensor) -> Tensor:
        scores = torch.bmm(q, k.transpose(1, 2)).float()
        rows, length, keys = bias_RLS.shape
        scores.view(rows, -1, length, keys).add_(bias_RLS[:, None])
        weights = torch.softmax(scores, dim=-1).to(v.dtype)
        out = torch.bmm(weights, v)
        ctx.save_for_backward(q, k, v, weights, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weights, out = ctx.saved_tensors
        grad_v = torch.bmm(weights.transpose(1, 2), grad)
        grad_scores = torch.bmm(grad, v.transpose(1, 2))
        # Through the softmax: w (g - sum of w g), where the sum over keys is that of grad * out over a head.
        along = (grad * out).sum(-1, keepdim=True)
        grad_scores.sub_(along).mul_(weights)
        return torch.bmm(grad_scores, k), torch.bmm(grad_scores.transpose(1, 2), q), grad_v, None


class _AttendLong(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        reach_RL: Tensor,
        last: Sequence[int],
        scores: int,
        window: int | None,
    ) -> Tensor:
        ctx.cut = last, scores, window
        out = torch.empty_like(q)
        for piece in _pieces(q, reach_RL, *ctx.cut):
            weights = piece.weights(q, k, reach_RL).to(v.dtype)
            piece.of(out).copy_(torch.bmm(weights, v[:, piece.keys]).view(piece.shape))
        ctx.save_for_backward(q, k, v, reach_RL, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:
        q, k, v, reach_RL, out = ctx.saved_tensors
        grad_q = torch.empty_like(q)
        grad_k, grad_v = (torch.zeros_like(x, dtype=torch.float32) for x in (k, v))  # sums over pieces
        grad = grad.contiguous()
        for piece in _pieces(q, reach_RL, *ctx.cut):
            part = piece.flat(grad)
            weights = piece.weights(q, k, reach_RL).to(v.dtype)
            grad_v[:, piece.keys] += torch.bmm(weights.transpose(1, 2), part)
            grad_scores = torch.bmm(part, v[:, piece.keys].transpose(1, 2))
            along = (part * piece.flat(out)).sum(-1, keepdim=True)
            grad_scores.sub_(along).mul_(weights)
            piece.of(grad_q).copy_(torch.bmm(grad_scores, k[:, piece.keys]).view(piece.shape))
            grad_k[:, piece.keys] += torch.bmm(grad_scores.transpose(1, 2), piece.flat(q))
        return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), None, None, None, None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries `begin : end` of all rows and heads, and the `keys` that one of them sees."""

    begin: int
    end: int
    keys: slice
    window: int | None
    length: int  # queries of a row and head
    shape: tuple[int, int, int, int]  # B x heads of a key-value head x queries of the piece x width

    def of(self, x_BQD: Tensor) -> Tensor:
        heads = self.shape[1]
        return x_BQD.view(len(x_BQD), heads, self.length, -1)[:, :, self.begin : self.end]

    def flat(self, x_BQD: Tensor) -> Tensor:
        return self.of(x_BQD).flatten(1, 2)

    def weights(self, q: Tensor, k: Tensor, reach_RL: Tensor) -> Tensor:
        scores = torch.bmm(self.flat(q), k[:, self.keys].transpose(1, 2)).float()
        seen_RC1 = reach_RL[:, self.begin : self.end, None]
        keys_S = torch.arange(self.keys.start, self.keys.stop, device=q.device)
        hidden_RCS = keys_S >= seen_RC1
        if self.window is not None:
            hidden_RCS |= keys_S < seen_RC1 - self.window
        by_row = scores.view(len(reach_RL), -1, *hidden_RCS.shape[1:])
        by_row.masked_fill_(hidden_RCS[:, None], -math.inf)
        return torch.softmax(scores, dim=-1)


def _pieces(q: Tensor, reach_RL: Tensor, last: Sequence[int], scores: int, window: int | None) -> Iterator[_Piece]:
    length = reach_RL.shape[1]
    heads = q.shape[1] // length
    size = max(1, scores // (len(q) * heads * max(last)))
    first = [0] * length if window is None else (reach_RL.amin(0) - window).clamp_min(0).tolist()
    for begin in range(0, length, size):
        end = min(begin + size, length)
        keys = slice(min(first[begin:end]), max(last[begin:end]))
        yield _Piece(begin, end, keys, window, length, (len(q), heads, end - begin, q.shape[2]))


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, unique: Tensor) -> Tensor:
        ctx.save_for_backward(unique)
        ctx.rows = len(x)
        return x.index_select(0, unique)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (unique,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, unique, grad), None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, readers: Tensor, first_reader: Tensor) -> Tensor:
        ctx.save_for_backward(readers, first_reader)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        readers, first_reader = ctx.saved_tensors
        return F.embedding_bag(readers, grad, first_reader, mode="sum"), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor, unread: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, unread)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        back, unread = ctx.saved_tensors
        grad_x = grad.index_select(0, back)
        return grad_x if unread is None else grad_x.index_fill_(0, unread, 0), None, None, None
