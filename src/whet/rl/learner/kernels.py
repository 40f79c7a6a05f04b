"""Small differentiable operations in fewer passes over memory than autograd makes of their parts.

On a CPU a small model spends more time in such operations than in matrix products. Every backward is written out by
hand and tested against autograd's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension D, in fp32."""
    return _call(_RmsNorm, x, weight_D, eps)


def rotate(x_THD: Tensor, cos_T1F: Tensor, sin_T1F: Tensor) -> Tensor:
    """Rotary position embedding, half-split convention of `transformers`; cos and sin hold F = D / 2 frequencies."""
    return _call(_Rotate, x_THD, cos_T1F, sin_T1F)


def pad(x_TD: Tensor, slots: Tensor, where: Tensor) -> Tensor:
    """Flat tokens as rows of a rectangle (see `layout.Rectangle`). Padding gets no gradient."""
    return _call(_Pad, x_TD, slots, where)


def unpad(x_PD: Tensor, slots: Tensor, where: Tensor, padding: Tensor) -> Tensor:
    """The real tokens of a rectangle, flat."""
    return _call(_Unpad, x_PD, slots, where, padding)


def _call(function: Any, *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        x = x.float()
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight_D, scale)
        return torch.mul(x, scale).mul_(weight_D)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight_D, scale = ctx.saved_tensors
        unit = x * scale
        product = grad * unit
        grad_weight_D = product.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        along = (product @ weight_D).unsqueeze(-1)
        grad_x = (grad * weight_D).addcmul_(unit, along, value=-1 / x.shape[-1]).mul_(scale)
        return grad_x, grad_weight_D, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, sin, -1), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    out = torch.empty(x.shape, dtype=cos.dtype, device=x.device)
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-direction)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin, value=direction)
    return out


class _Pad(torch.autograd.Function):
    """Gather forward and, because every token has one place, gather backward (autograd's own scatter-add is slow)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, where: Tensor) -> Tensor:
        ctx.save_for_backward(where)
        return x.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (where,) = ctx.saved_tensors
        return grad.index_select(0, where), None, None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, where: Tensor, padding: Tensor) -> Tensor:
        ctx.save_for_backward(slots, padding)
        return x.index_select(0, where)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        slots, padding = ctx.saved_tensors
        return grad.index_select(0, slots).index_fill_(0, padding, 0), None, None, None
