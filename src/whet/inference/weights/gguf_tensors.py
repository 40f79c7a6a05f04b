"""The tensors of a GGUF file under the names of a `transformers` checkpoint, mapped into memory in their formats.

The index is written when the file is first read (`gguf_cache.py`), since the library that parses one makes an object of
each token of its vocabulary. What is computed with in blocks is mapped from a copy of the file's tensors, transposed
byte by byte (`gguf_blocks.py`), matrices that read the same side by side; it is made when first needed. What
llama.cpp's converter changes is undone here: the heads of Llama's queries and keys are interleaved, Gemma's norms have
1 added.
Source: `convert_hf_to_gguf.py` of llama.cpp.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import defaultdict
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

WEIGHTS, TRANSPOSED = "model.safetensors", "gguf_matrices.bin"
_READ_THE_SAME = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_ALIGNED = 64
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

    @property
    def rows(self) -> int:
        """Of a matrix; a vector is one row."""
        return self.shape[0] if len(self.shape) == 2 else 1


@dataclass(frozen=True, slots=True)
class _Position:
    """Where the transposed copy has a tensor: rows from `row` on of those side by side, which are `size` bytes."""

    offset: int
    size: int
    row: int
    all_rows: int


def _positions(index: Mapping[str, StoredTensor]) -> dict[str, _Position]:
    """Matrices of one format that read the same are side by side: as one matrix, to `block_matrix.joined`."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, stored in index.items():
        at, _, part = name.removesuffix(".weight").rpartition(".")
        key: tuple[str, ...] = (name,)
        if len(stored.shape) == 2 and (alike := next((each for each in _READ_THE_SAME if part in each), None)):
            key = at, *alike, stored.format
        groups.setdefault(key, []).append(name)
    places, offset = dict[str, _Position](), 0
    for names in groups.values():
        size, row = sum(index[name].size for name in names), 0
        all_rows = sum(index[name].rows for name in names)
        for name in names:
            places[name] = _Position(offset, size, row, all_rows)
            row += index[name].rows
        offset += -(-size // _ALIGNED) * _ALIGNED
    return places


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
            known = _OPEN[directory] = cls(_transposed(directory, as_stored), as_stored.index, transposed=True)
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
        self.index, self._positions = index, _positions(index) if transposed else {}
        try:
            size = file.stat().st_size
            self._bytes = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            raise ModelLoadError(f"{file} cannot be read: {error}") from None
        if any(position.offset + position.size > size for position in (self._positions or index).values()):
            raise ModelLoadError(f"{file} is cut off: it has {size:,} bytes; download it again")

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, name: str) -> Tensor | BlockMatrix:
        stored = self.index[name]
        form = FORMATS.get(stored.format)
        if form is None:
            raise ModelLoadError(
                f"{name} is in the format {stored.format}, which is not read; {', '.join(FORMATS)} are"
            )
        if len(stored.shape) == 2:
            return BlockMatrix(self.stored(name), form)
        dense = form.dequantize(self.stored(name)).view(stored.shape)
        return dense - stored.added if stored.added else dense

    def stored(self, name: str) -> Tensor:
        """The bytes of a tensor, [bytes of a row, rows], its rows as a checkpoint has them; a vector is one row."""
        stored = self.index[name]
        if name in self._positions:
            position = self._positions[name]
            whole = self._bytes[position.offset : position.offset + position.size].view(-1, position.all_rows)
            return whole[:, position.row : position.row + stored.rows]
        rows = self._bytes[stored.offset : stored.offset + stored.size].view(stored.rows, -1)
        if stored.heads:
            halves = torch.arange(len(rows)).view(stored.heads, -1, 2)
            rows = rows[halves.transpose(1, 2).flatten()]
        return rows.T.contiguous()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.shape for name, stored in self.index.items()}

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
            aside, groups = file.with_suffix(".part"), defaultdict[int, list[str]](list)
            for name, position in _positions(tensors.index).items():
                groups[position.offset].append(name)
            try:
                with aside.open("wb") as stream:
                    for offset, names in sorted(groups.items()):
                        stream.seek(offset)
                        stream.write(torch.cat([tensors.stored(name) for name in names], 1).numpy().data)
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
