"""safetensors files and checkpoint directories: read by mapping them, written one tensor after the other.

*Named* weights are tensors under the names of a `transformers` checkpoint. A file is mapped, so tensors are read as
they are used; one is written from a `TensorStream`, names, types and shapes at once and each tensor when its turn
comes, so that a model need not be held a second time. Files are byte for byte those of the safetensors library, which
takes all tensors at once and copies them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.errors import ModelLoadError

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


def read_safetensors(paths: Iterable[Path]) -> NamedWeights:
    named: NamedWeights = {}
    for path in paths:
        try:
            named.update(_tensors(path))
        except FileNotFoundError:  # safetensors raises it for a file that may not be read, too
            if path.exists():
                raise ModelLoadError(
                    f"{path} may not be read by this user; its owner can allow that: chmod a+r"
                ) from None
            raise ModelLoadError(f"{path} is missing; fetch or export the model again") from None
        except SafetensorError as error:
            raise ModelLoadError(f"{path} is torn or not a safetensors file ({error})") from None
    return named


def _tensors(path: Path) -> NamedWeights:
    """The tensors of a file, mapped into memory. The library checks the file and gives no tensor away: each one that
    its 0.8.0 does leaves two numbers behind until the process ends, which over a run's many updates is megabytes.
    """
    with safe_open(path, framework="pt"):
        pass
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
    header.pop("__metadata__", None)
    whole = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    named = {}
    for name, entry in header.items():
        if (dtype := SAFETENSORS_DTYPES.get(entry["dtype"])) is None:
            raise ModelLoadError(f"{path}: {name!r} holds numbers of type {entry['dtype']}, which no engine here reads")
        begin, end = entry["data_offsets"]
        data = whole[start + begin : start + end]
        if (start + begin) % dtype.itemsize:
            data = data.clone()  # only a file that another library wrote begins its data at any byte
        named[name] = data.view(dtype).view(entry["shape"])
    return named


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
        for tensor in stream.tensors:
            file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
