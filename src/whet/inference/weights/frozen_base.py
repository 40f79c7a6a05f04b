"""The frozen weights of a run that trains an adapter: once in a process, for learner and engine.

A tensor that its file has in the wanted dtype is the mapped file, which several processes share; another one is read
alone, converted, and its file let go of. Norms and biases are float32. The engine multiplies with matrices as the
checkpoint has them (`block_matrix.JoinedRows`), so what it would fold into them is applied to inputs and outputs, and
the adapter is two thin products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from whet.inference.architecture import COPIED, Architecture
from whet.inference.weights.block_matrix import BlockMatrix, FrozenTensors
from whet.inference.weights.gguf_cache import INDEX, indexed
from whet.inference.weights.gguf_tensors import GGUFTensors
from whet.inference.weights.model_weights import checkpoint_files
from whet.inference.weights.safetensors_files import FileTensor, NamedWeights, file_tensors, read_safetensors


class DenseMatrix(BlockMatrix):
    """[R, C] as it is; multiplied with what is of another dtype, it is converted a few rows at a time."""

    __slots__ = ()

    def __init__(self, rows: Tensor) -> None:
        self.blocks, self.columns = rows.T, rows.shape[1]

    @property
    def rows(self) -> Tensor:
        """[R, C]"""
        return self.blocks.T

    @property
    def stored(self) -> tuple[Tensor, ...]:
        return (self.rows.view(torch.uint8),)

    def like(self, *stored: Tensor) -> BlockMatrix:
        return DenseMatrix(stored[0].view(self.rows.dtype))

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.rows.to(dtype)

    def select(self, rows_N: Tensor) -> Tensor:
        return self.rows.index_select(0, rows_N).float()

    def part(self, rows: slice, dtype: torch.dtype) -> Tensor:
        return self.rows[rows].to(dtype)

    def _transposed(self, rows: slice, dtype: torch.dtype) -> Tensor:
        return self.blocks[:, rows].to(dtype)

    def product(self, x_NC: Tensor) -> Tensor:
        return x_NC @ self.rows.T if x_NC.dtype == self.rows.dtype else super().product(x_NC)


class FrozenBase(FrozenTensors):
    """The tensors of a checkpoint, by name: matrices as `DenseMatrix`, vectors in float32. None is ever written to."""

    @classmethod
    def of(cls, directory: Path, arch: Architecture, dtype: torch.dtype, device: torch.device | str) -> FrozenBase:
        """Those of `directory` with matrices in `dtype`: the same for all who hold them in this process.

        `arch` is the model's. Raises `ModelLoadError` for files that are missing or torn.
        """
        key = directory.resolve(), dtype, torch.empty(0, device=device).device
        known = _HELD.get(key)
        if known is None:
            known = _HELD[key] = cls(_read(directory, arch, dtype, key[2]))
        return known

    def __init__(self, tensors: NamedWeights) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, name: str) -> Tensor | DenseMatrix:
        tensor = self.tensors[name]
        return DenseMatrix(tensor) if tensor.dim() == 2 else tensor


_HELD: WeakValueDictionary[tuple[Path, torch.dtype, torch.device], FrozenBase] = WeakValueDictionary()


def worth_sharing(directory: Path, arch: Architecture) -> bool:
    """Whether an engine is to compute with the base itself instead of a copy that adapters are merged into.

    Experts are stacked into copies. Of a small model a copy takes less than it saves in time.
    """
    if arch.experts is not None:
        return False
    if (directory / INDEX).is_file():
        return sum(values for values, _ in indexed(directory)) > COPIED
    return sum(math.prod(entry.shape) for entry in file_tensors(checkpoint_files(directory)).values()) > COPIED


def _read(directory: Path, arch: Architecture, dtype: torch.dtype, device: torch.device) -> NamedWeights:
    named: NamedWeights = {}
    if (directory / INDEX).is_file() and dtype != torch.float32:  # it need not be written in float32 first
        stored = GGUFTensors.as_stored(directory)
        sources: dict[str, Callable[[], Tensor]] = {name: _dequantised(stored, name, dtype) for name in stored}
        shapes = stored.shapes
        mapped: NamedWeights = {}
    else:
        files = checkpoint_files(directory)
        entries = file_tensors(files)
        sources = {name: entry.read for name, entry in entries.items()}
        shapes = {name: entry.shape for name, entry in entries.items()}
        mapped = read_safetensors(files) if any(_as_it_is(entry, dtype) for entry in entries.values()) else {}
        mapped = {name: tensor for name, tensor in mapped.items() if _as_it_is(entries[name], dtype)}
    # The largest first: what is held twice for a moment is then the least.
    for name, read in sorted(sources.items(), key=lambda each: -math.prod(shapes[each[0]])):
        if name == "lm_head.weight" and arch.tied_embeddings:
            continue
        tensor = mapped[name] if name in mapped else read().to(dtype if len(shapes[name]) > 1 else torch.float32)
        named[name] = tensor.to(device)
    return named


def _dequantised(stored: GGUFTensors, name: str, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Rounded part by part, so that a large matrix is never whole in float32."""

    def read() -> Tensor:
        tensor = stored[name]
        return tensor.dense(dtype) if isinstance(tensor, BlockMatrix) else tensor

    return read


def _as_it_is(entry: FileTensor, dtype: torch.dtype) -> bool:
    return entry.dtype == (dtype if len(entry.shape) > 1 else torch.float32)
