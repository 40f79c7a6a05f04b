"""A matrix that stays in the blocks of its GGUF file: dequantised some rows at a time, whenever it is multiplied with.

Frozen weights need no other form: a forward pass multiplies with each matrix once, and a backward pass once more for
the gradient of its input. What is dequantised at a time is a matrix of a small model, or a part of a large one.

Shapes: N inputs of width C; R outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.inference.weights.gguf_blocks import BlockFormat, scratch

_CPU_WEIGHTS, _CUDA_WEIGHTS = 1 << 20, 1 << 26
"""Dequantised at a time: 4 MiB and 256 MiB in float32. With fewer, calling operations takes longer than they do."""
_LEAST_ROWS = 256
"""Rows that are dequantised at a time at least, since operations run along them."""


class BlockMatrix:
    """[R, C] in blocks; `blocks` is [bytes of a row, R] uint8, which several may share and is never written to."""

    __slots__ = ("blocks", "columns", "format")

    def __init__(self, blocks: Tensor, block_format: BlockFormat) -> None:
        self.blocks, self.format = blocks, block_format
        self.columns = blocks.shape[0] // block_format.size * block_format.weights

    @property
    def shape(self) -> tuple[int, int]:
        return self.blocks.shape[1], self.columns

    @property
    def device(self) -> torch.device:
        return self.blocks.device

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """All its memory; the first is in bytes."""
        return (self.blocks,)

    def like(self, *stored: Tensor) -> BlockMatrix:
        """A matrix of this kind with other memory."""
        return BlockMatrix(stored[0], self.format)

    def to(self, device: torch.device | str) -> BlockMatrix:
        return self.like(*(each.to(device) for each in self.stored))

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The whole matrix, [R, C]."""
        weight_RC = torch.empty(self.shape, dtype=dtype, device=self.device)
        for part, weight in self._parts(dtype):
            weight_RC[part] = weight.T
        return weight_RC

    def select(self, rows_N: Tensor) -> Tensor:
        """Some rows, [N, C] float32."""
        return self.format.dequantize(self.blocks.index_select(1, rows_N)).T.contiguous()

    def part(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """Rows one after the other, [n, C], a column contiguous; what is dequantised next overwrites them."""
        if rows.stop - rows.start <= self._rows_at_once(dtype):
            return self._transposed(rows, dtype).T
        weight_Cn = torch.empty(self.columns, rows.stop - rows.start, dtype=dtype, device=self.device)
        for part, weight in self._parts(dtype, rows):
            weight_Cn[:, part.start - rows.start : part.stop - rows.start] = weight
        return weight_Cn.T

    def product(self, x_NC: Tensor) -> Tensor:
        """x @ W.T, [N, R], in the dtype of x, which gets gradients."""
        if not (torch.is_grad_enabled() and x_NC.requires_grad):
            return self._times(x_NC)
        result: Tensor = _Product.apply(x_NC, self)  # type: ignore[no-untyped-call]
        return result

    def transposed_product(self, grad_NR: Tensor) -> Tensor:
        """grad @ W, [N, C], in the dtype of grad."""
        flat, grad_x = grad_NR.reshape(-1, grad_NR.shape[-1]), None
        for part, weight in self._parts(grad_NR.dtype):
            more = torch.mm(flat[:, part], weight.T)
            grad_x = more if grad_x is None else grad_x.float().add_(more)  # summed in float32
        assert grad_x is not None
        return grad_x.to(grad_NR.dtype).view(*grad_NR.shape[:-1], self.columns)

    def _times(self, x_NC: Tensor) -> Tensor:
        out_NR = x_NC.new_empty(*x_NC.shape[:-1], self.shape[0])
        flat, flat_out = x_NC.reshape(-1, self.columns), out_NR.view(-1, self.shape[0])
        for part, weight in self._parts(x_NC.dtype):
            torch.mm(flat, weight, out=flat_out[:, part])
        return out_NR

    def _parts(self, dtype: torch.dtype, rows: slice | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Rows and the transposed matrix of them, [C, n], which the next part overwrites."""
        rows, step = rows or slice(0, self.shape[0]), self._rows_at_once(dtype)
        for start in range(rows.start, rows.stop, step):
            part = slice(start, min(start + step, rows.stop))
            yield part, self._transposed(part, dtype)

    def _rows_at_once(self, dtype: torch.dtype) -> int:
        return max(_LEAST_ROWS, (_CUDA_WEIGHTS if self.blocks.is_cuda else _CPU_WEIGHTS) // self.columns)

    def _transposed(self, rows: slice, dtype: torch.dtype) -> Tensor:
        size = self.columns, rows.stop - rows.start
        weight = self.format.dequantize(self.blocks[:, rows], scratch("weights", size, torch.float32, self.device))
        if dtype != torch.float32:
            weight = scratch("rounded weights", size, dtype, self.device).copy_(weight)
        return weight


def joined(parts: Sequence[BlockMatrix]) -> tuple[BlockMatrix, ...]:
    """The same rows as fewer matrices: those that follow one another in memory are one, for which operations are
    called once."""
    whole = [parts[0]]
    for part in parts[1:]:
        before, blocks = whole[-1], whole[-1].blocks
        end = blocks.data_ptr() + blocks.shape[1] * blocks.stride(1)
        alike = type(before) is type(part) is BlockMatrix and before.format is part.format
        if alike and part.blocks.data_ptr() == end and part.blocks.stride() == blocks.stride():
            size = blocks.shape[0], blocks.shape[1] + part.blocks.shape[1]
            whole[-1] = BlockMatrix(blocks.as_strided(size, blocks.stride()), before.format)
        else:
            whole.append(part)
    return tuple(whole)


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
        return matrix._times(x_NC)

    @staticmethod
    def backward(ctx: Any, grad_NR: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.transposed_product(grad_NR), None
