"""The block formats of GGUF files: bytes to float32, equal bit for bit to the `gguf` package, on every device.

A row of a quantised matrix is a sequence of blocks: 32 or 256 weights share a scale, in some formats a minimum too.
Here the same byte of all rows lies side by side (`gguf_tensors.py`), so that each operation runs over long stretches of
memory; and what is dequantised is the transposed matrix, ready for a product. Every product of a code and a scale fits
into float32, so a value is rounded once, however it is computed.
Source of the formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h and `gguf.quants`.

Shapes: N rows of B blocks with S bytes each; G groups of bytes in a block; K bytes in a group; W weights of a block.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from whet.errors import ModelLoadError

_CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 16 codes of the IQ4 formats stand for."""
_NIBBLES, _PAIRS, _BITS = (0, 4), (0, 2, 4, 6), tuple(range(8))

_Read: TypeAlias = "tuple[Tensor, Tensor | None, Tensor | None]"
"""Codes [B, W, N]; what they are multiplied with, then what is added, both float32 [B, parts of a block, N]."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`weights` weights are in `size` bytes; `read` takes [B, size, N] uint8."""

    weights: int
    size: int
    read: Callable[[Tensor], _Read]

    def dequantize(self, bytes_N: Tensor, out_N: Tensor | None = None) -> Tensor:
        """[bytes of a row, N] uint8 to [columns, N] float32, into `out_N` where it is given."""
        codes, scale, added = self.read(bytes_N.unflatten(0, (-1, self.size)))
        if out_N is None:
            out_N = codes.new_empty(codes.shape[0] * self.weights, codes.shape[2], dtype=torch.float32)
        out_N.copy_(codes.flatten(0, 1))
        if scale is not None:
            values = out_N.unflatten(0, (*scale.shape[:2], -1))
            if added is None:
                values.mul_(scale.unsqueeze(2))
            else:
                torch.addcmul(added.unsqueeze(2), values, scale.unsqueeze(2), out=values)
        return out_N


def block_format(name: str) -> BlockFormat:
    """The format that `gguf.GGMLQuantizationType` calls `name`. Raises `ModelLoadError` for one that is not known."""
    if name not in FORMATS:
        raise ModelLoadError(f"weights in the format {name} are not read; those in {', '.join(FORMATS)} are")
    return FORMATS[name]


class _Scratch(threading.local):
    """Memory of this thread that is written to again and again: new memory costs as much as what is done with it."""

    def __init__(self) -> None:
        self.flat: dict[tuple[str, torch.dtype], Tensor] = {}


_SCRATCH = _Scratch()


def scratch(use: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of this shape, on a CPU in memory that the next one for the same `use` overwrites."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    flat, count = _SCRATCH.flat.get((use, dtype)), math.prod(shape)
    if flat is None or len(flat) < count:
        with torch.inference_mode(False):  # an engine's would be of no use to a learner in its thread
            flat = _SCRATCH.flat[use, dtype] = torch.empty(count, dtype=dtype)
    return flat[:count].view(shape)


def _number(bytes_BKN: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of K = 2 or 4 bytes, the least first: [B, K, N] to [B, 1, N] of `dtype`."""
    wide = bytes_BKN.to(torch.int16 if dtype.itemsize == 2 else torch.int32)
    number = wide[:, -1:]
    for at in range(dtype.itemsize - 2, -1, -1):
        number = (number << 8).bitwise_or_(wide[:, at : at + 1])
    return number.view(dtype)


def _half(bytes_B2N: Tensor) -> Tensor:
    return _number(bytes_B2N, torch.float16).float()


def _two_halves(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and the minimum that a block begins with."""
    scale, least = (
        _number(blocks[:, :4].unflatten(1, (2, 2)).flatten(0, 1), torch.float16).float().unflatten(0, (-1, 2)).unbind(1)
    )
    return scale, least


def _plain(dtype: torch.dtype) -> Callable[[Tensor], _Read]:
    """Of a format without blocks."""
    return lambda blocks: (_number(blocks, dtype), None, None)


def _fields(bytes_BGKN: Tensor, shifts: tuple[int, ...], to: int = 0) -> Tensor:
    """What each byte has at `shifts`, all of one width, at bit `to`: [B, G, K, N] to [B, G * shifts * K, N].

    The next fields at this bit overwrite it.
    """
    (blocks, groups, count, rows), width = bytes_BGKN.shape, shifts[1]
    shape, mask = (blocks, groups, len(shifts), count, rows), ((1 << width) - 1) << to
    fields = scratch(f"fields at bit {to}", shape, torch.uint8, bytes_BGKN.device)
    for at, shift in enumerate(shifts):
        part = fields[:, :, at]
        if shift == to:
            torch.bitwise_and(bytes_BGKN, mask, out=part)
        elif shift > to:
            torch.bitwise_right_shift(bytes_BGKN, shift - to, out=part)
            if to or shift + width < 8:
                part.bitwise_and_(mask)
        else:
            torch.bitwise_left_shift(bytes_BGKN, to - shift, out=part).bitwise_and_(mask)
    return fields.flatten(1, 3)


def _of_32(blocks: Tensor, head: int, high: Tensor | None = None) -> Tensor:
    """The 32 codes of a small block whose nibbles begin at byte `head`: [B, 32, N] uint8."""
    codes = _fields(blocks[:, None, head:], _NIBBLES)
    return codes if high is None else codes.bitwise_or_(_fields(high[:, :, None], _BITS, to=4))


def _around(middle: int, codes: Tensor) -> Tensor:
    """Codes less `middle`, as int8."""
    return codes.sub_(middle).view(torch.int8)


def _q4_0(blocks: Tensor) -> _Read:
    return _around(8, _of_32(blocks, 2)), _half(blocks[:, :2]), None


def _q4_1(blocks: Tensor) -> _Read:
    return _of_32(blocks, 4), *_two_halves(blocks)


def _q5_0(blocks: Tensor) -> _Read:
    return _around(16, _of_32(blocks, 6, blocks[:, 2:6])), _half(blocks[:, :2]), None


def _q5_1(blocks: Tensor) -> _Read:
    return _of_32(blocks, 8, blocks[:, 4:8]), *_two_halves(blocks)


def _q8_0(blocks: Tensor) -> _Read:
    return blocks[:, 2:].view(torch.int8), _half(blocks[:, :2]), None


def _iq4_nl(blocks: Tensor) -> _Read:
    return _decoded(_of_32(blocks, 2)), _half(blocks[:, :2]), None


def _decoded(codes: Tensor) -> Tensor:
    book = torch.tensor(_CODEBOOK, dtype=torch.int8, device=codes.device)
    return book.index_select(0, codes.view(-1).int()).view(codes.shape)  # five times as fast as indexing


def _q2_k(blocks: Tensor) -> _Read:
    scale, least = _fields(blocks[:, None, :16], _NIBBLES).float().chunk(2, 1)
    codes = _fields(blocks[:, 16:80].unflatten(1, (2, 32)), _PAIRS)
    return codes, scale.mul_(_half(blocks[:, 80:82])), least.mul_(_half(blocks[:, 82:])).neg_()


def _q3_k(blocks: Tensor) -> _Read:
    low, high = _fields(blocks[:, None, 96:104], _NIBBLES), _fields(blocks[:, None, 104:108], _PAIRS, to=4)
    scale = _around(32, low.bitwise_or_(high)).float().mul_(_half(blocks[:, 108:]))
    codes = _fields(blocks[:, 32:96].unflatten(1, (2, 32)), _PAIRS)
    return _around(4, codes.bitwise_or_(_fields(blocks[:, None, :32], _BITS, to=2))), scale, None


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of Q4_K and Q5_K: eight scales and minima of six bits each, in bytes 4 to 16; the minima with their sign turned.
    Both [B, 8, N] float32."""
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, rest & 15 | first >> 2 & 48], dim=1)
    minima = torch.cat([second & 63, rest >> 4 | second >> 2 & 48], dim=1)
    return scales.float().mul_(_half(blocks[:, :2])), minima.float().mul_(_half(blocks[:, 2:4])).neg_()


def _q4_k(blocks: Tensor) -> _Read:
    return _fields(blocks[:, 16:].unflatten(1, (4, 32)), _NIBBLES), *_scales_and_minima(blocks)


def _q5_k(blocks: Tensor) -> _Read:
    codes = _fields(blocks[:, 48:].unflatten(1, (4, 32)), _NIBBLES)
    codes.bitwise_or_(_fields(blocks[:, None, 16:48], _BITS, to=4))
    return codes, *_scales_and_minima(blocks)


def _q6_k(blocks: Tensor) -> _Read:
    codes = _fields(blocks[:, :128].unflatten(1, (2, 64)), _NIBBLES)
    high = _fields(blocks[:, 128:192].unflatten(1, (2, 32)), _PAIRS, to=4)
    scale = blocks[:, 192:208].view(torch.int8).float().mul_(_half(blocks[:, 208:]))
    return _around(32, codes.bitwise_or_(high)), scale, None


def _iq4_xs(blocks: Tensor) -> _Read:
    low, high = _fields(blocks[:, 4:8, None], _NIBBLES), _fields(blocks[:, 2:4, None], _PAIRS, to=4)
    scale = _around(32, low.bitwise_or_(high)).float().mul_(_half(blocks[:, :2]))
    return _decoded(_fields(blocks[:, 8:].unflatten(1, (8, 16)), _NIBBLES)), scale, None


FORMATS = {
    "F32": BlockFormat(1, 4, _plain(torch.float32)),
    "F16": BlockFormat(1, 2, _plain(torch.float16)),
    "BF16": BlockFormat(1, 2, _plain(torch.bfloat16)),
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "IQ4_NL": BlockFormat(32, 18, _iq4_nl),
    "Q2_K": BlockFormat(256, 84, _q2_k),
    "Q3_K": BlockFormat(256, 110, _q3_k),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k),
    "Q6_K": BlockFormat(256, 210, _q6_k),
    "IQ4_XS": BlockFormat(256, 136, _iq4_xs),
}
"""By the names of `gguf.GGMLQuantizationType`."""
