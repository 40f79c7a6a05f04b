"""The linear layers of a safetensors checkpoint in 4 or 8 bits, for a run that trains an adapter and for an engine.

`nf4`: 4 bits, a float32 scale for each 64 weights of a row (QLoRA: Dettmers et al. 2023, arXiv:2305.14314); `int8`: a
float32 scale for each row (the weights of LLM.int8(): Dettmers et al. 2022, arXiv:2208.07339). bitsandbytes quantises
them once, into a file in the cache that all processes map. Embedding and unembedding are those of the checkpoint's
file, in its dtype, norms and biases float32. Like a base in the blocks of a GGUF file, a matrix is dequantised some
rows at a time whenever it is multiplied with (`block_matrix.py`).

Shapes: R outputs, C inputs.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.devices import why_not_quantised
from whet.inference.plain.family import OtherFamily
from whet.inference.weights.block_matrix import BlockMatrix, FrozenTensors
from whet.inference.weights.frozen_base import DenseMatrix
from whet.inference.weights.gguf_blocks import scratch
from whet.inference.weights.gguf_cache import INDEX, alone
from whet.inference.weights.gguf_tensors import GGUFTensors
from whet.inference.weights.model_weights import checkpoint_files, fusions
from whet.inference.weights.safetensors_files import (
    FileTensor,
    TensorStream,
    file_tensors,
    read_safetensors,
    write_tensors,
)
from whet.system.files import user_cache

Quantised: TypeAlias = Literal["nf4", "int8"]
GROUP = 64
"""Weights of a row that share a scale in nf4."""
_MULTIPLE = {"nf4": GROUP, "int8": 4}
"""What a row's number of weights has to be a multiple of: whole groups; scales at addresses of float32."""
_ALLOCATED, _CUDA_WEIGHTS = 1 << 19, 1 << 26
"""Of a CPU's dequantised rows, bytes: the library allocates them anew, which is cheap below what the C library maps
(`learner/make.py`: 768 KiB). On CUDA, weights."""
_QUANTISED_AT_ONCE = 1 << 18
_SCALES = ".scales"
_log = logging.getLogger(__name__)


class QuantisedMatrix(BlockMatrix):
    """[R, C] as `codes` of its rows and float32 `scales`."""

    __slots__ = ("codes", "scales")

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        self.codes, self.scales, self.blocks, self.columns = codes, scales, codes.T, codes.shape[1]

    @property
    def stored(self) -> tuple[Tensor, ...]:
        return self.codes, self.scales

    def like(self, *stored: Tensor) -> BlockMatrix:
        return type(self)(*stored)

    def select(self, rows_N: Tensor) -> Tensor:
        return self.like(*(each.index_select(0, rows_N) for each in self.stored)).dense()


class NF4Matrix(QuantisedMatrix):
    """`codes` [R, C / 2] uint8, `scales` [R, C / 64]."""

    __slots__ = ()

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        super().__init__(codes, scales)
        self.columns = 2 * codes.shape[1]

    def _transposed(self, rows: slice, dtype: torch.dtype) -> Tensor:
        size, scales = (rows.stop - rows.start, self.columns), self.scales[rows].reshape(-1)
        weight: Tensor = _library().dequantize_4bit(self.codes[rows], scales, GROUP, "nf4", size, dtype)
        return weight.T

    def _rows_at_once(self, dtype: torch.dtype) -> int:
        weights = _CUDA_WEIGHTS if self.codes.is_cuda else _ALLOCATED // dtype.itemsize
        return max(1, weights // self.columns)


class Int8Matrix(QuantisedMatrix):
    """`codes` [R, C] int8 in bytes, `scales` [R, 1]: what a code is multiplied with."""

    __slots__ = ()

    def _transposed(self, rows: slice, dtype: torch.dtype) -> Tensor:
        size = rows.stop - rows.start, self.columns
        weight = scratch("weights", size, torch.float32, self.device).copy_(self.codes[rows].view(torch.int8))
        weight.mul_(self.scales[rows])
        if dtype != torch.float32:
            weight = scratch("rounded weights", size, dtype, self.device).copy_(weight)
        return weight.T


class QuantisedBase(FrozenTensors):
    """The tensors of a checkpoint, by name; none is ever written to."""

    @classmethod
    def of(
        cls, directory: Path, arch: Architecture | OtherFamily, form: Quantised, device: torch.device | str = "cpu"
    ) -> Self:
        """Those of `directory`: the same for all who hold them in this process, the file's for all processes.

        Raises `ModelLoadError` without bitsandbytes, for a model or device that it is not for, and for files that are
        missing, torn or cannot be written.
        """
        on = torch.empty(0, device=device).device
        known = _HELD.get((directory.resolve(), form, on))
        if known is None:
            check_quantised(directory, arch, form, on.type)
            assert isinstance(arch, Architecture)
            known = _HELD[directory.resolve(), form, on] = cls(_read(directory, arch, form, on))
        return cast(Self, known)

    def __init__(self, tensors: Mapping[str, Tensor | BlockMatrix]) -> None:
        self._tensors = tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> Tensor | BlockMatrix:
        return self._tensors[name]


_HELD: WeakValueDictionary[tuple[Path, str, torch.device], QuantisedBase] = WeakValueDictionary()


def frozen_tensors(
    directory: Path, arch: Architecture | OtherFamily, form: str, device: torch.device | str = "cpu"
) -> FrozenTensors:
    """The tensors of a model whose matrices stay in `form`: packed, nf4 or int8. Raises `ModelLoadError`."""
    if form == "packed":
        return GGUFTensors.of(directory)
    return QuantisedBase.of(directory, arch, cast(Quantised, form), device)


def check_quantised(directory: Path, arch: Architecture | OtherFamily, form: str, device: str) -> None:
    """Raise `ModelLoadError` for what cannot be held in `form`."""
    if (reason := why_not_quantised(form, device)) is not None:
        raise ModelLoadError(reason)
    if (directory / INDEX).is_file():
        raise ModelLoadError(f'{directory} was made from a GGUF file, which is quantised as it is: use "packed"')
    if not isinstance(arch, Architecture) or arch.experts is not None:
        raise ModelLoadError(
            f"{directory}: {form} is for models without experts, of the families that whet's own forward pass computes"
        )


def _read(
    directory: Path, arch: Architecture, form: Quantised, device: torch.device
) -> dict[str, Tensor | BlockMatrix]:
    files = checkpoint_files(directory)
    tensors: dict[str, Tensor | BlockMatrix] = {}
    kind = NF4Matrix if form == "nf4" else Int8Matrix
    linear, mapped = _linear_layers(arch), read_safetensors([_quantised(directory, files, arch, form)])
    for name, tensor in read_safetensors(files).items():
        if name in linear:
            codes, scales = mapped[name], mapped[name + _SCALES].view(torch.float32)
            tensors[name] = kind(codes, scales).to(device)
        elif name != "lm_head.weight" or not arch.tied_embeddings:
            tensors[name] = DenseMatrix(tensor).to(device) if tensor.dim() == 2 else tensor.float().to(device)
    return tensors


def _linear_layers(arch: Architecture) -> set[str]:
    return {
        f"model.layers.{layer}.{part.name}.weight"
        for layer in range(arch.num_layers)
        for fusion in fusions(arch, layer)
        for part in fusion.parts
    }


def _quantised(directory: Path, files: list[Path], arch: Architecture, form: Quantised) -> Path:
    """The file of codes and scales, written now unless the cache has it for these files."""
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    made = user_cache("quantised") / hashlib.sha256(json.dumps(states).encode()).hexdigest()[:16]
    file = made / f"{form}.safetensors"
    with alone(made):
        if not file.is_file():
            _log.warning("%s: quantising it once to %s, into %s", directory, form, made)
            aside = file.with_suffix(".part")
            try:
                made.mkdir(parents=True, exist_ok=True)
                write_tensors(aside, _stream(file_tensors(files), _linear_layers(arch), form))
                aside.replace(file)
            except OSError as error:
                aside.unlink(missing_ok=True)
                raise ModelLoadError(f"{file} cannot be written: {error}") from None
    return file


def _stream(stored: dict[str, FileTensor], linear: set[str], form: Quantised) -> TensorStream:
    """All in bytes, so that a matrix's scales come right after its codes."""
    described, scales = dict[str, Tensor](), dict[str, Tensor]()
    for name in linear & stored.keys():
        rows, columns = stored[name].shape
        if columns % _MULTIPLE[form]:
            raise ModelLoadError(
                f"{name} has rows of {columns} weights, and {form} is for multiples of {_MULTIPLE[form]}"
            )
        sizes = (columns // 2, columns // GROUP * 4) if form == "nf4" else (columns, 4)
        for part, size in zip((name, name + _SCALES), sizes, strict=True):
            described[part] = torch.empty(rows, size, dtype=torch.uint8, device="meta")

    def read(part: str) -> Tensor:
        if part in scales:
            return scales.pop(part).view(torch.uint8)
        codes, scales[part + _SCALES] = _quantise(stored[part], form)
        return codes

    return TensorStream.of(described, read)


def _quantise(stored: FileTensor, form: Quantised) -> tuple[Tensor, Tensor]:
    """Codes and scales of a matrix, some rows at a time."""
    rows, columns = stored.shape
    step = max(1, _QUANTISED_AT_ONCE // columns)
    parts = []
    for start in range(0, rows, step):
        weight = stored.read(slice(start, min(start + step, rows))).float()
        if form == "nf4":
            codes, scales = _library().quantize_4bit(weight, GROUP, "nf4", torch.uint8)
        else:
            codes, scales, _ = _library().int8_vectorwise_quant(weight)
            scales = scales / 127
        parts.append((codes.view(len(weight), -1).view(torch.uint8), scales.view(len(weight), -1)))
    codes, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return codes, scales


@cache
def _library() -> Any:
    """The operations of bitsandbytes, of which it logs what else a CPU could have."""
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level = logger.level
    logger.setLevel(logging.ERROR)
    import bitsandbytes  # noqa: F401

    logger.setLevel(level)
    return torch.ops.bitsandbytes
