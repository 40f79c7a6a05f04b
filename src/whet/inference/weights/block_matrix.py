"""A matrix that stays in the blocks of its GGUF file: dequantised a few rows at a time, whenever it is multiplied with.

Frozen weights need no other form: a forward pass multiplies with each matrix once, and a backward pass once more for
the gradient of its input. What is dequantised at a time fits a CPU's cache; on a GPU it is most of a layer.

Shapes: N inputs of width C; R outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.inference.weights.gguf_blocks import BlockFormat

_CPU_WEIGHTS, _CUDA_WEIGHTS = 1 << 17, 1 << 26
"""Dequantised at a time at most: 512 KiB and 256 MiB in float32."""


class BlockMatrix:
    """[R, C] in blocks; `rows` is [R, bytes of a row] uint8, which several may share and is never written to."""

    __slots__ = ("columns", "format", "rows")

    def __init__(self, rows: Tensor, block_format: BlockFormat) -> None:
        self.rows, self.format = rows, block_format
        self.columns = rows.shape[1] // block_format.size * block_format.weights

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.columns

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def to(self, device: torch.device) -> BlockMatrix:
        return BlockMatrix(self.rows.to(device), self.format)

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The whole matrix, [R, C]."""
        dense = torch.empty(self.shape, dtype=dtype, device=self.rows.device)
        for part, weight in self._parts(dtype):
            dense[part] = weight
        return dense

    def select(self, rows_N: Tensor) -> Tensor:
        """Some rows, [N, C] float32."""
        return self.format.dequantize(self.rows.index_select(0, rows_N))

    def part(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """Rows one after the other, [n, C]."""
        return self.format.dequantize(self.rows[rows]).to(dtype)

    def product(self, x_NC: Tensor) -> Tensor:
        """x @ W.T, [N, R], in the dtype of x, which gets gradients."""
        result: Tensor = _Product.apply(x_NC, self)  # type: ignore[no-untyped-call]
        return result

    def _parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        at_once = _CUDA_WEIGHTS if self.rows.is_cuda else _CPU_WEIGHTS
        step = max(1, at_once // self.columns)
        for start in range(0, len(self.rows), step):
            part = slice(start, min(start + step, len(self.rows)))
            yield part, self.part(part, dtype)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Linear layers that read the same, in blocks, as one matrix of a packed decoder layer (`model_weights.Fusion`).

    What `model_weights.pack` folds into a matrix is applied to what goes in and what comes out: `gain` [C] of the norm
    before it, `scale` [R] and `order` [R] of its outputs.
    """

    parts: tuple[BlockMatrix, ...]
    gain: Tensor | None = None
    scale: Tensor | None = None
    order: Tensor | None = None

    def times(self, x_NC: Tensor) -> Tensor:
        """x times the matrix, [N, R]."""
        if self.gain is not None:
            x_NC = (x_NC * self.gain).to(x_NC.dtype)
        out = (
            self.parts[0].product(x_NC)
            if len(self.parts) == 1
            else torch.cat([p.product(x_NC) for p in self.parts], -1)
        )
        if self.scale is not None:
            out = out.mul_(self.scale)
        return out if self.order is None else out.index_select(-1, self.order)


class FrozenTensors(Mapping[str, "Tensor | BlockMatrix"]):
    """Tensors of a checkpoint, by name, of which matrices are multiplied with as they are."""


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, matrix: BlockMatrix) -> Tensor:
        ctx.matrix = matrix
        out = x_NC.new_empty(*x_NC.shape[:-1], len(matrix.rows))
        flat = x_NC.reshape(-1, matrix.columns)
        for part, weight in matrix._parts(x_NC.dtype):
            out.view(len(flat), -1)[:, part] = flat @ weight.T
        return out

    @staticmethod
    def backward(ctx: Any, grad_NR: Tensor) -> tuple[Tensor, None]:
        grad_x = torch.zeros(*grad_NR.shape[:-1], ctx.matrix.columns, dtype=grad_NR.dtype, device=grad_NR.device)
        flat, flat_x = grad_NR.reshape(-1, grad_NR.shape[-1]), grad_x.view(-1, ctx.matrix.columns)
        for part, weight in ctx.matrix._parts(grad_NR.dtype):
            flat_x.addmm_(flat[:, part], weight)
        return grad_x, None
