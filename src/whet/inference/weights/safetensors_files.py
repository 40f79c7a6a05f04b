"""safetensors files and checkpoint directories: read by mapping them, written one tensor after the other.

*Named* weights are tensors under the names of a `transformers` checkpoint. A file is mapped, so tensors are read as
they are used; one is written from a `TensorStream`, names, types and shapes at once and each tensor when its turn
comes, so that a model need not be held a second time. Files are byte for byte those of the safetensors library, which
takes all tensors at once and copies them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.weights.host_memory import copied_ahead

NamedWeights: TypeAlias = dict[str, Tensor]
SAFETENSORS_DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By their names in a safetensors file, in the order in which files have them."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor that is in a file from byte `begin` on."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, rows: slice | None = None) -> Tensor:
        """Its values, or those of some of its rows (a slice with both ends), in memory of their own: nothing of the
        file stays mapped. Raises `ModelLoadError` for a file that has changed since."""
        shape, begin = self.shape, self.begin
        if rows is not None:
            row = math.prod(shape[1:]) * self.dtype.itemsize
            shape, begin = (rows.stop - rows.start, *shape[1:]), begin + rows.start * row
        tensor = torch.empty(shape, dtype=self.dtype)
        into = tensor.view(-1).view(torch.uint8).numpy().data
        with self.path.open("rb", buffering=0) as file:
            file.seek(begin)
            at = 0
            while at < len(into):  # one call reads 2 GiB at most
                if not (count := file.readinto(into[at:])):
                    raise ModelLoadError(f"{self.path} is shorter than it was; fetch or export the model again")
                at += count
        return tensor


def read_safetensors(paths: Iterable[Path]) -> NamedWeights:
    """The tensors of files, mapped into memory. Raises `ModelLoadError` for files that are missing or torn."""
    named: NamedWeights = {}
    for path in paths:
        stored = file_tensors([path])
        whole = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
        for name, entry in stored.items():
            data = whole[entry.begin : entry.begin + entry.size]
            if entry.begin % entry.dtype.itemsize:
                data = data.clone()  # only a file that another library wrote begins its data at any byte
            named[name] = data.view(entry.dtype).view(entry.shape)
    return named


def file_tensors(paths: Iterable[Path]) -> dict[str, FileTensor]:
    """Where the tensors of files are, by name. Raises `ModelLoadError` for files that are missing or torn."""
    stored: dict[str, FileTensor] = {}
    for path in paths:
        try:
            stored.update(_stored(path))
        except FileNotFoundError:  # safetensors raises it for a file that may not be read, too
            if path.exists():
                raise ModelLoadError(
                    f"{path} may not be read by this user; its owner can allow that: chmod a+r"
                ) from None
            raise ModelLoadError(f"{path} is missing; fetch or export the model again") from None
        except SafetensorError as error:
            raise ModelLoadError(f"{path} is torn or not a safetensors file ({error})") from None
    return stored


def _stored(path: Path) -> dict[str, FileTensor]:
    """Of one file. The library checks it and gives no tensor away: each one that its 0.8.0 does leaves two numbers
    behind until the process ends, which over a run's many updates is megabytes.
    """
    with safe_open(path, framework="pt"):
        pass
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
    header.pop("__metadata__", None)
    stored = {}
    for name, entry in header.items():
        if (dtype := SAFETENSORS_DTYPES.get(entry["dtype"])) is None:
            raise ModelLoadError(f"{path}: {name!r} holds numbers of type {entry['dtype']}, which no engine here reads")
        stored[name] = FileTensor(path, dtype, tuple(entry["shape"]), start + entry["data_offsets"][0])
    return stored


_ORDER = tuple(SAFETENSORS_DTYPES)
"""In files, tensors with more bytes a number come first, and those of one type by name."""
_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorStream:
    """Tensors in the order of a file."""

    described: Mapping[str, Tensor]  # their types and shapes; may be on the meta device
    tensors: Iterator[Tensor]

    @classmethod
    def of(cls, described: Mapping[str, Tensor], read: Callable[[str], Tensor]) -> Self:
        """`read` gives a tensor by its name, and is called once for each."""
        order = sorted(described, key=lambda name: (_ORDER.index(_NAMES[described[name].dtype]), name))
        return cls({name: described[name] for name in order}, (read(name) for name in order))


def write_tensors(path: Path, tensors: TensorStream | Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Raises `OSError` where the disk does not take it."""
    stream = tensors if isinstance(tensors, TensorStream) else TensorStream.of(tensors, tensors.__getitem__)
    # transformers asks for the metadata before it reads a file
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in stream.described.items():
        begin, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    described = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    described += b" " * (-len(described) % 8)
    with path.open("wb") as file:
        file.write(len(described).to_bytes(8, "little") + described)
        for _, tensor in copied_ahead(zip(stream.described, stream.tensors, strict=True)):
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
