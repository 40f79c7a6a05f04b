"""The block formats of GGUF files: bytes to float32, equal bit for bit to the `gguf` package, on every device.

A row of a quantised matrix is a sequence of blocks: 32 or 256 weights share a scale, in some formats a minimum too.
Source of the formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h and `gguf.quants`.

Shapes: N blocks; G groups of bytes in a block; K bytes in a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.errors import ModelLoadError

_CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 16 codes of the IQ4 formats stand for."""
_NIBBLES, _PAIRS, _BITS = (0, 4), (0, 2, 4, 6), tuple(range(8))


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`weights` weights are in `size` bytes; `read` takes [N, size] uint8 and returns N * weights values as float32."""

    weights: int
    size: int
    read: Callable[[Tensor], Tensor]

    def dequantize(self, rows: Tensor) -> Tensor:
        """[rows, bytes] uint8 to [rows, columns] float32."""
        return self.read(rows.reshape(-1, self.size)).view(rows.shape[0], -1)


def block_format(name: str) -> BlockFormat:
    """The format that `gguf.GGMLQuantizationType` calls `name`. Raises `ModelLoadError` for one that is not known."""
    if name not in FORMATS:
        raise ModelLoadError(f"weights in the format {name} are not read; those in {', '.join(FORMATS)} are")
    return FORMATS[name]


def _half(bytes_N2: Tensor) -> Tensor:
    """float16 in two bytes, to float32 [N, 1]."""
    return bytes_N2.contiguous().view(torch.float16).float()


def _fields(bytes_NGK: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """What each byte has at `shifts`, all of one width: [N, G, K] to [N, G, shifts, K]."""
    groups, mask = bytes_NGK.shape, (1 << shifts[1]) - 1
    fields = bytes_NGK.new_empty(groups[0], groups[1], len(shifts), groups[2])
    for at, shift in enumerate(shifts):
        torch.bitwise_right_shift(bytes_NGK, shift, out=fields[:, :, at])
    return fields.bitwise_and_(mask)


def _of_32(blocks: Tensor, head: int, high: Tensor | None = None) -> Tensor:
    """The 32 codes of a small block whose nibbles begin at byte `head`: [N, 32] uint8."""
    codes = _fields(blocks[:, None, head:], _NIBBLES).view(-1, 32)
    return (
        codes
        if high is None
        else codes.bitwise_or_(_fields(high[:, :, None], _BITS).view(-1, 32).bitwise_left_shift_(4))
    )


def _q4_0(blocks: Tensor) -> Tensor:
    return _of_32(blocks, 2).float().sub_(8).mul_(_half(blocks[:, :2]))


def _q4_1(blocks: Tensor) -> Tensor:
    return _of_32(blocks, 4).float().mul_(_half(blocks[:, :2])).add_(_half(blocks[:, 2:4]))


def _q5_0(blocks: Tensor) -> Tensor:
    return _of_32(blocks, 6, blocks[:, 2:6]).float().sub_(16).mul_(_half(blocks[:, :2]))


def _q5_1(blocks: Tensor) -> Tensor:
    return _of_32(blocks, 8, blocks[:, 4:8]).float().mul_(_half(blocks[:, :2])).add_(_half(blocks[:, 2:4]))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks[:, :2]))


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _decoded(_of_32(blocks, 2)).mul_(_half(blocks[:, :2]))


def _decoded(codes: Tensor) -> Tensor:
    return torch.tensor(_CODEBOOK, dtype=torch.float32, device=codes.device)[codes.int()]


def _q2_k(blocks: Tensor) -> Tensor:
    scales = _fields(blocks[:, None, :16], _NIBBLES).float()
    scale, least = (scales[:, 0, at] * _half(half) for at, half in ((0, blocks[:, 80:82]), (1, blocks[:, 82:])))
    codes = _fields(blocks[:, 16:80].reshape(-1, 2, 32), _PAIRS).view(-1, 16, 16)
    return codes.float().mul_(scale[:, :, None]).sub_(least[:, :, None])


def _q3_k(blocks: Tensor) -> Tensor:
    low = _fields(blocks[:, None, 96:104], _NIBBLES).view(-1, 16)
    high = _fields(blocks[:, None, 104:108], _PAIRS).view(-1, 16)
    scale = (low | high << 4).float().sub_(32).mul_(_half(blocks[:, 108:]))
    codes = _fields(blocks[:, 32:96].reshape(-1, 2, 32), _PAIRS).view(-1, 16, 16)
    bits = _fields(blocks[:, None, :32], _BITS).view(-1, 16, 16)
    return codes.bitwise_or_(bits << 2).float().sub_(4).mul_(scale[:, :, None])


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of Q4_K and Q5_K: eight scales and minima of six bits each, in bytes 4 to 16. Both [N, 8, 1] float32."""
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, rest & 15 | first >> 2 & 48], dim=1)
    minima = torch.cat([second & 63, rest >> 4 | second >> 2 & 48], dim=1)
    scale, least = scales.float().mul_(_half(blocks[:, :2])), minima.float().mul_(_half(blocks[:, 2:4]))
    return scale[:, :, None], least[:, :, None]


def _q4_k(blocks: Tensor) -> Tensor:
    scale, least = _scales_and_minima(blocks)
    codes = _fields(blocks[:, 16:].reshape(-1, 4, 32), _NIBBLES).view(-1, 8, 32)
    return codes.float().mul_(scale).sub_(least)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, least = _scales_and_minima(blocks)
    codes = _fields(blocks[:, 48:].reshape(-1, 4, 32), _NIBBLES).view(-1, 8, 32)
    codes.bitwise_or_(_fields(blocks[:, None, 16:48], _BITS).view(-1, 8, 32).bitwise_left_shift_(4))
    return codes.float().mul_(scale).sub_(least)


def _q6_k(blocks: Tensor) -> Tensor:
    codes = _fields(blocks[:, :128].reshape(-1, 2, 64), _NIBBLES).view(-1, 8, 32)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), _PAIRS).view(-1, 8, 32)
    codes.bitwise_or_(high.bitwise_left_shift_(4))
    scale = blocks[:, 192:208].view(torch.int8).float().mul_(_half(blocks[:, 208:]))
    return codes.view(-1, 16, 16).float().sub_(32).mul_(scale[:, :, None])


def _iq4_xs(blocks: Tensor) -> Tensor:
    high = _fields(blocks[:, 2:4, None], _PAIRS).view(-1, 8)
    low = _fields(blocks[:, 4:8, None], _NIBBLES).view(-1, 8)
    scale = (low | high << 4).float().sub_(32).mul_(_half(blocks[:, :2]))
    codes = _fields(blocks[:, 8:].reshape(-1, 8, 16), _NIBBLES).view(-1, 8, 32)
    return _decoded(codes).mul_(scale[:, :, None])


FORMATS = {
    "F32": BlockFormat(1, 4, lambda blocks: blocks.view(torch.float32)),
    "F16": BlockFormat(1, 2, lambda blocks: blocks.view(torch.float16).float()),
    "BF16": BlockFormat(1, 2, lambda blocks: blocks.view(torch.bfloat16).float()),
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
