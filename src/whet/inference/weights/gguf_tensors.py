"""The tensors of a GGUF file under the names of a `transformers` checkpoint, mapped into memory in their formats.

The index is written when the file is first read (`gguf_cache.py`), since the library that parses one makes an object of
each token of its vocabulary. What is computed with in blocks is mapped from a copy of the file, of the same size and
layout, whose matrices are transposed byte by byte (`gguf_blocks.py`); it is made when first needed. What llama.cpp's
converter changes is undone here: the heads of Llama's queries and keys are interleaved, Gemma's norms have 1 added.
Source: `convert_hf_to_gguf.py` of llama.cpp.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.weights.block_matrix import BlockMatrix, FrozenTensors
from whet.inference.weights.gguf_blocks import FORMATS
from whet.inference.weights.gguf_cache import INDEX, alone, gguf_source, source_of
from whet.inference.weights.safetensors_files import TensorStream, write_tensors

if TYPE_CHECKING:
    from gguf import GGUFReader

WEIGHTS, TRANSPOSED = "model.safetensors", "gguf_transposed.bin"
_log = logging.getLogger(__name__)
_INTERLEAVED, _OFFSET_NORMS = ("llama", "mistral"), ("gemma3",)
KNOWN = (*_INTERLEAVED, *_OFFSET_NORMS, "qwen2", "qwen3", "phi3")
"""Architectures, as GGUF files call them, whose tensors are those of the checkpoint but for these two changes."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is in the file: `offset` in bytes, `shape` as a checkpoint has it (outputs, inputs).

    `heads`: its rows are those of so many heads, each with the two halves of rotated pairs next to each other.
    `added` is to be taken off its values.
    """

    format: str
    shape: tuple[int, ...]
    offset: int
    size: int
    heads: int = 0
    added: float = 0.0


def index_tensors(reader: GGUFReader, architecture: str, names: Iterable[str], config: Any) -> dict[str, StoredTensor]:
    """Of each of `names`, those of a checkpoint, where the file has it; what the file lacks is left out.

    `architecture` is one of `KNOWN`, and `config` that of `transformers`.
    """
    import gguf

    kind = next(
        kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.replace("mistral", "llama")
    )
    stored = {tensor.name: tensor for tensor in reader.tensors}
    of_file = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    index = {}
    for name in names:
        tensor = stored.get(of_file.get_name(name, try_suffixes=(".weight", ".bias")) or "")
        if tensor is None:
            continue
        interleaved = architecture in _INTERLEAVED and (".q_proj." in name or ".k_proj." in name)
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        index[name] = StoredTensor(
            format=tensor.tensor_type.name,
            shape=tuple(int(size) for size in reversed(tensor.shape)),
            offset=int(tensor.data_offset),
            size=int(tensor.n_bytes),
            heads=heads if interleaved else 0,
            added=1.0 if architecture in _OFFSET_NORMS and name.endswith("norm.weight") else 0.0,
        )
    return index


def write_index(directory: Path, index: Mapping[str, StoredTensor]) -> None:
    table = {name: asdict(stored) for name, stored in index.items()}
    (directory / INDEX).write_text(json.dumps(table, indent=0) + "\n", encoding="utf-8")


def _read_index(directory: Path) -> dict[str, StoredTensor]:
    """Raises `ModelLoadError` for an index that is torn."""
    path = directory / INDEX
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return {name: StoredTensor(**{**entry, "shape": tuple(entry["shape"])}) for name, entry in table.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelLoadError(
            f"{path} cannot be read ({error}); delete {directory}, and the file is read again"
        ) from None


class GGUFTensors(FrozenTensors):
    """A file's tensors by the names of a checkpoint: matrices as `BlockMatrix`, vectors in float32.

    The file is mapped once, and read as its tensors are used.
    """

    @classmethod
    def of(cls, directory: Path) -> GGUFTensors:
        """Those of the file that a directory was made from; one mapping for all readers of a process.

        Raises `ModelLoadError`, where the transposed copy of the file cannot be written too.
        """
        known = _OPEN.get(directory)
        if known is None:
            as_stored = cls.as_stored(directory)
            known = _OPEN[directory] = cls(_transposed(directory, as_stored), as_stored._index, transposed=True)
        return known

    @classmethod
    def as_stored(cls, directory: Path) -> GGUFTensors:
        """The same, from the file itself: matrices are transposed whenever they are read."""
        file = source_of(directory)
        if file is None or not (directory / INDEX).is_file():
            raise ModelLoadError(
                f"{directory} has no matrices in the blocks of a GGUF file: it was not made from a file of one of the "
                f"architectures that are read so ({', '.join(KNOWN)})"
            )
        return cls(file, _read_index(directory))

    def __init__(self, file: Path, index: Mapping[str, StoredTensor], *, transposed: bool = False) -> None:
        """Raises `ModelLoadError` for a file that is not there, or shorter than the index says."""
        self._index, self._transposed = index, transposed
        try:
            self.size = file.stat().st_size
            self._bytes = torch.from_file(str(file), shared=False, size=self.size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            raise ModelLoadError(f"{file} cannot be read: {error}") from None
        if any(stored.offset + stored.size > self.size for stored in index.values()):
            raise ModelLoadError(f"{file} is cut off: it has {self.size:,} bytes; download it again")

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, name: str) -> Tensor | BlockMatrix:
        stored = self._index[name]
        form = FORMATS.get(stored.format)
        if form is None:
            raise ModelLoadError(
                f"{name} is in the format {stored.format}, which is not read; {', '.join(FORMATS)} are"
            )
        if len(stored.shape) == 2:
            return BlockMatrix(self.stored(name).view(-1, stored.shape[0]), form)
        dense = form.dequantize(self.stored(name)[:, None]).view(stored.shape)
        return dense - stored.added if stored.added else dense

    def stored(self, name: str) -> Tensor:
        """The bytes of a tensor, a matrix transposed, its rows as a checkpoint has them."""
        stored = self._index[name]
        data = self._bytes[stored.offset : stored.offset + stored.size]
        if self._transposed or len(stored.shape) != 2:
            return data
        rows = data.view(stored.shape[0], -1)
        if stored.heads:
            halves = torch.arange(len(rows)).view(stored.heads, -1, 2)
            rows = rows[halves.transpose(1, 2).flatten()]
        return rows.T.contiguous().view(-1)

    def offset(self, name: str) -> int:
        """Where its bytes begin in the file."""
        return self._index[name].offset

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.shape for name, stored in self._index.items()}

    def dense(self, name: str) -> Tensor:
        """In float32."""
        tensor = self[name]
        return tensor.dense() if isinstance(tensor, BlockMatrix) else tensor


_OPEN: WeakValueDictionary[Path, GGUFTensors] = WeakValueDictionary()


def _transposed(directory: Path, tensors: GGUFTensors) -> Path:
    """The copy of a file with transposed matrices, written now unless the directory has it."""
    file = directory / TRANSPOSED
    with alone(directory):
        if not file.is_file():
            aside = file.with_suffix(".part")
            try:
                with aside.open("wb") as stream:
                    stream.truncate(tensors.size)
                    for name in tensors:
                        stream.seek(tensors.offset(name))
                        stream.write(tensors.stored(name).numpy().data)
                    stream.flush()
                    os.fsync(stream.fileno())
                shutil.copymode(directory / "config.json", aside)
                aside.replace(file)
            except OSError as error:
                aside.unlink(missing_ok=True)
                raise ModelLoadError(f"{file} cannot be written: {error}") from None
    return file


def complete(directory: Path) -> Path:
    """The directory of a model, with its weights in float32 if it was made from a GGUF file and lacks them.

    They take 4 bytes for each value on disk, and memory for one tensor. Raises `ModelLoadError`.
    """
    weights = directory / WEIGHTS
    if not (directory / INDEX).is_file() or weights.is_file():
        return directory
    with alone(directory):
        if not weights.is_file():
            tensors = GGUFTensors.as_stored(directory)
            _log.warning("%s: dequantising it once, into %s", gguf_source(directory), directory)
            described = {name: torch.empty(shape, device="meta") for name, shape in tensors.shapes.items()}
            aside = weights.with_suffix(".part")
            try:
                write_tensors(aside, TensorStream.of(described, tensors.dense))
                shutil.copymode(directory / "config.json", aside)
                aside.replace(weights)
            except OSError as error:
                aside.unlink(missing_ok=True)
                raise ModelLoadError(f"{weights} cannot be written: {error}") from None
    return directory
