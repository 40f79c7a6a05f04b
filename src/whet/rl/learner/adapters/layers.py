"""Linear layers of a frozen base that add, to the rows of each adapter, what it makes of them.

All rows are multiplied with the base's matrix together; an adapter's two thin products are over its own rows. Gradients
of an adapter's matrices are added to where a `LayerPart` says, not to parameters: so a pass over several pieces of work
has the gradients of each apart.

On a CPU the base's products are made of tiles of `TILE` rows: how a library adds up the numbers of a row may depend on
how many rows there are, and so on which other adapters are computed with it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TILE = 32
"""Rows of a product on a CPU; in bfloat16 twice as many, which the forward pass pads to."""


def tile_of(device: torch.device, dtype: torch.dtype) -> int:
    """What the rows of an adapter are padded to a multiple of."""
    if device.type != "cpu":
        return 1
    return TILE if dtype == torch.float32 else 2 * TILE


@dataclass(frozen=True, slots=True)
class DropoutDraw:
    """What is dropped of one layer's input in one pass: the same whenever it is drawn."""

    probability: float
    key: str

    def factors(self, like: Tensor) -> Tensor:
        """0 or 1 / (1 - p) for each number."""
        seed = int.from_bytes(hashlib.blake2b(self.key.encode(), digest_size=8).digest(), "little")
        generator = torch.Generator(like.device).manual_seed(seed >> 1)
        return torch.empty_like(like).bernoulli_(1 - self.probability, generator=generator).div_(1 - self.probability)


@dataclass(frozen=True, slots=True, eq=False)
class LayerPart:
    """What one adapter adds to one layer, for the rows of one piece."""

    rows: slice
    down: Tensor  # [r, in], in the dtype of products
    up: Tensor  # [out, r]
    scale: float
    gradients: tuple[Tensor, Tensor] | None = None  # float32; what those of `down` and `up` are added to
    dropout: DropoutDraw | None = None


class AdaptedLinear(nn.Module):
    """A linear layer of the base; `parts` is what adapters add in this pass."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.parts: list[LayerPart] = []

    @property
    def sizes(self) -> tuple[int, int]:
        """Of an input and an output."""
        base: Any = self.base
        return base.in_features, base.out_features

    def forward(self, x: Tensor) -> Tensor:
        base: Any = self.base
        if type(base) is nn.Linear and x.device.type == "cpu":
            y: Tensor = _TiledProduct.apply(x, base.weight, base.bias)  # type: ignore[no-untyped-call]
        else:
            y = base(x)
        if not self.parts:
            return y
        added: Tensor = _Added.apply(y, x, _ANCHOR, self.parts)  # type: ignore[no-untyped-call]
        return added


_ANCHOR = torch.zeros((), requires_grad=True)
"""With it a gradient comes by an adapter even where its layer's input has none, as in the first layer."""


class _TiledProduct(torch.autograd.Function):
    """x @ W.T + b in the dtype of x, for a W that is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        y = _tiled(x, weight.to(x.dtype).T)
        return y if bias is None else y.add_(bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        (weight,) = ctx.saved_tensors
        return _tiled(grad.contiguous(), weight.to(grad.dtype)) if ctx.needs_input_grad[0] else None, None, None


def _tiled(x: Tensor, matrix: Tensor) -> Tensor:
    rows = tile_of(x.device, x.dtype)
    tiles = len(x) // rows
    y = x.new_empty(len(x), matrix.shape[1])
    torch.bmm(x.view(tiles, rows, -1), matrix.expand(tiles, -1, -1), out=y.view(tiles, rows, -1))
    return y


class _Added(torch.autograd.Function):
    """y plus what the parts make of x, in place."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, anchor: Tensor, parts: list[LayerPart]) -> Tensor:
        ctx.mark_dirty(y)
        lows, lefts = [], []
        for part in parts:
            left = x[part.rows]
            if part.dropout is not None:
                left = left * part.dropout.factors(left)
            low = torch.mm(left, part.down.T)
            y[part.rows].addmm_(low, part.up.T, alpha=part.scale)
            lows.append(low)
            lefts.append(left)
        ctx.parts, ctx.lows = parts, lows
        ctx.save_for_backward(x, *lefts)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, *lefts = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x = torch.zeros_like(x) if ctx.needs_input_grad[1] else None
        for part, low, left in zip(ctx.parts, ctx.lows, lefts, strict=True):
            if part.gradients is None:  # its rows get no gradient
                continue
            own = grad[part.rows]
            grad_low = torch.mm(own, part.up)  # without the scale
            for total, of_output, of_input in zip(part.gradients, (grad_low, own), (left, low), strict=True):
                if total.dtype == own.dtype:
                    total.addmm_(of_output.T, of_input, alpha=part.scale)
                else:
                    total.add_(torch.mm(of_output.T, of_input), alpha=part.scale)
            if grad_x is not None:
                own_x = grad_x[part.rows].addmm_(grad_low, part.down, alpha=part.scale)
                if part.dropout is not None:
                    own_x.mul_(part.dropout.factors(own_x))
        return grad, grad_x, None, None


def low_rank_logits(part: LayerPart, hidden_ND: Tensor) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """What an adapter of the output matrix makes of hidden states: its two factors of what logits get, and for each of
    its matrices that a gradient comes to, the leaf and where its gradient is added."""
    down, up = part.down.detach(), part.up.detach()
    leaves: list[tuple[Tensor, Tensor]] = []
    if part.gradients is not None:
        leaves = [*zip((down.requires_grad_(), up.requires_grad_()), part.gradients, strict=True)]
    left_ND = hidden_ND if part.dropout is None else hidden_ND * part.dropout.factors(hidden_ND)
    return F.linear(left_ND, down) * part.scale, up, leaves
