"""Packed weights as a file that a learner leaves for engines of its host: mapped into memory, and used as they lie.

    packed tensors, each from a multiple of 64 bytes on │ where they are, as JSON │ length of the JSON │ `_ENDING`

An engine that takes such weights neither copies nor computes anything, so next to nothing stands in the way of the
thread that decodes: it maps the file, reads every page once and looks the tensors up. All engines of a host and the
learner share one copy. The alignment is the one that torch gives its own tensors: matrix products may round otherwise
on others. The table stands at the end, so that the learner can write one layer after the other.

Written and read by one version of whet, for the length of a run. What people keep is a safetensors file.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.weights import PackedWeights

_ALIGNMENT = 64
_LENGTH_BYTES = 8
_ENDING = b"whet packed 1\n"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_OPTIONAL = "unembedding"  # which a tied model does not have


def write_packed(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write what `weights.packed_tensors` gives. Raises `OSError`."""
    table = {}
    with path.open("wb") as file:
        for name, tensor in tensors:
            file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
            dtype = str(tensor.dtype).removeprefix("torch.")
            table[name] = {"dtype": dtype, "shape": list(tensor.shape), "offset": file.tell()}
            file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        described = json.dumps(table).encode()
        file.write(described + len(described).to_bytes(_LENGTH_BYTES, "little") + _ENDING)


def map_packed(path: Path, like: PackedWeights) -> PackedWeights:
    """The weights in a file, to take the place of `like`: of its names, shapes and dtypes, on its device.

    On the CPU they are the file's own memory, which stays when the file is deleted. Raises `ModelLoadError` for a file
    that is missing, torn or of another model.
    """
    try:
        with path.open("rb") as file:
            table, size = _read_table(file, path)
        bytes_N = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    except FileNotFoundError:
        raise ModelLoadError(f"{path} is missing: a learner keeps only the newest weights it handed over") from None
    bytes_N[:: mmap.PAGESIZE].sum()  # every page is there before a decode step asks for it
    bytes_N = bytes_N.to(like.embedding.device)
    wanted, tensors = like.tensors(), dict[str, Tensor]()
    for name, expected in wanted.items():
        if (entry := table.pop(name, None)) is not None:
            tensors[name] = _tensor(entry, bytes_N, name, expected, path)
        elif name != _OPTIONAL:
            raise ModelLoadError(f"{path} lacks {name!r}: it was handed over for another model")
    if table:
        raise ModelLoadError(f"{path} holds {min(table)!r}, which the engine's model does not have")
    return PackedWeights.of(tensors)


def _read_table(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """Where each tensor is, and the size of the file."""
    size = os.fstat(file.fileno()).st_size
    tail = _LENGTH_BYTES + len(_ENDING)
    torn = ModelLoadError(f"{path} is torn, or no weights that a learner of this version of whet handed over")
    if size < tail:
        raise torn
    file.seek(size - tail)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if file.read() != _ENDING or length > size - tail:
        raise torn
    file.seek(size - tail - length)
    table: dict[str, Any] = json.loads(file.read(length))
    return table, size


def _tensor(entry: dict[str, Any], bytes_N: Tensor, name: str, expected: Tensor, path: Path) -> Tensor:
    dtype, shape, offset = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["offset"]
    if shape != tuple(expected.shape):
        raise ModelLoadError(f"{path}: {name!r} has shape {shape}; the engine's model asks for {tuple(expected.shape)}")
    held = bytes_N.narrow(0, offset, math.prod(shape) * dtype.itemsize)
    return held.view(dtype).view(shape).to(expected.dtype)
