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
from torch import Tensor, nn

from whet.rl.learner.forward.kernels import product_dtype
from whet.rl.learner.packed_base import FrozenLinear

TILE = 16
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
    """What one adapter adds to one layer, for the rows of one piece with their padding."""

    piece: int  # which of the pieces of a pass
    down: Tensor  # [r, in], in the dtype of products
    up: Tensor  # [out, r]
    scale: float
    gradients: tuple[Tensor, Tensor] | None = None  # float32; what those of `down` and `up` are added to
    dropout: DropoutDraw | None = None


class AdaptedLinear(nn.Module):
    """A linear layer of the base; `parts` is what adapters add in this pass, whose pieces have so many rows each."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.parts: list[LayerPart] = []
        self.spans: list[int] = []

    @property
    def sizes(self) -> tuple[int, int]:
        """Of an input and an output."""
        base: Any = self.base
        return base.in_features, base.out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.parts, self.spans)

    def product(self, x: Tensor, parts: list[LayerPart], spans: list[int]) -> Tensor:
        """Of rows that are those of some pieces, with the parts that are for them."""
        anchor = _ANCHOR if parts else None
        y: Tensor = _AdaptedProduct.apply(x.to(product_dtype(x.device)), anchor, self, parts, spans)  # type: ignore[no-untyped-call]
        return y

    def forwards(self, x: Tensor) -> Tensor:
        """x @ W.T + b, in the dtype of x."""
        base: Any = self.base
        y = base.matrix.product(x) if isinstance(base, FrozenLinear) else _tiled(x, base.weight.to(x.dtype).T)
        return y if base.bias is None else y.add_(base.bias.to(x.dtype))

    def backwards(self, grad: Tensor) -> Tensor:
        """grad @ W."""
        base: Any = self.base
        if isinstance(base, FrozenLinear):
            return base.matrix.transposed_product(grad)
        return _tiled(grad, base.weight.to(grad.dtype))


_ANCHOR = torch.zeros((), requires_grad=True)
"""With it a gradient comes by an adapter even where its layer's input has none, as in the first layer."""


def _tiled(x: Tensor, matrix: Tensor) -> Tensor:
    rows = tile_of(x.device, x.dtype)
    if rows == 1:
        return x @ matrix
    tiles = len(x) // rows
    y = x.new_empty(len(x), matrix.shape[1])
    torch.bmm(x.view(tiles, rows, -1), matrix.expand(tiles, -1, -1), out=y.view(tiles, rows, -1))
    return y


class _AdaptedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor | None, layer: AdaptedLinear, parts: list[LayerPart], spans: list[int]
    ) -> Tensor:
        y = layer.forwards(x)
        lows, lefts = [], []
        own_x, own_y = (x.split(spans), y.split(spans)) if parts else ((), ())
        for part in parts:
            left = own_x[part.piece]
            if part.dropout is not None:
                left = left * part.dropout.factors(left)
            low = torch.mm(left, part.down.T)
            own_y[part.piece].addmm_(low, part.up.T, alpha=part.scale)
            lows.append(low)
            lefts.append(left)
        ctx.layer, ctx.parts, ctx.lows, ctx.spans = layer, parts, lows, spans
        ctx.save_for_backward(*lefts)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        grad = grad.contiguous()
        grad_x = ctx.layer.backwards(grad) if ctx.needs_input_grad[0] else None
        if not ctx.parts:
            return grad_x, None, None, None, None
        own_grad, own_grad_x = grad.split(ctx.spans), () if grad_x is None else grad_x.split(ctx.spans)
        for part, low, left in zip(ctx.parts, ctx.lows, ctx.saved_tensors, strict=True):
            if part.gradients is None:  # its rows get no gradient
                continue
            own = own_grad[part.piece]
            grad_low = torch.mm(own, part.up)  # without the scale
            for total, of_output, of_input in zip(part.gradients, (grad_low, own), (left, low), strict=True):
                if total.dtype == own.dtype:
                    total.addmm_(of_output.T, of_input, alpha=part.scale)
                else:
                    total.add_(torch.mm(of_output.T, of_input), alpha=part.scale)
            if own_grad_x and part.dropout is None:
                own_grad_x[part.piece].addmm_(grad_low, part.down, alpha=part.scale)
            elif own_grad_x and part.dropout is not None:
                left_grad = torch.mm(grad_low, part.down).mul_(part.dropout.factors(left))
                own_grad_x[part.piece].add_(left_grad, alpha=part.scale)
        return grad_x, None, None, None, None
