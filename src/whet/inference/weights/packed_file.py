"""Packed weights as a file that a learner leaves for engines of its host: mapped into memory, and used in place.

    packed tensors, each from a multiple of 64 bytes on │ where they are, as JSON │ length of the JSON │ `_ENDING`

An engine that takes such weights neither copies nor computes anything, so the decoding thread is hardly
delayed: it maps the file and looks the tensors up. All engines of a host and the learner share one copy.
The alignment is the one that torch gives its own tensors: matrix products may round otherwise on others. The table
is at the end, so that the learner can write one layer after the other.

A learner writes into the file that no engine reads any more, instead of into a new one, and an engine keeps what it has
mapped: so in the long run two files go back and forth, and the system neither clears nor maps nor gives back a page,
which at gigabytes would take as long as a decode step, and slow those of the time down. A reader holds a shared
lock on it for as long as one of its tensors lives, also where the engine is behind, or another one reads as well; the
learner takes only files that it can lock for itself. Locks end with their process.

Written and read by one version of whet, for the length of a run. What people keep is a safetensors file.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from whet.errors import ModelLoadError
from whet.inference.weights.host_memory import copied_ahead, to_device

_ALIGNMENT = 64
_LENGTH_BYTES = 8
_ENDING = b"whet packed 1\n"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_OPTIONAL = "unembedding"  # which a tied model does not have


class _Tensors(Protocol):
    """Weights as a forward pass takes them, by name."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self: ...
    def tensors(self) -> dict[str, Tensor]: ...


MappedWeights = TypeVar("MappedWeights", bound=_Tensors)


def write_packed(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write what `weights.packed_tensors` gives, in place of what the file held. Raises `OSError`."""
    table = {}
    with path.open("r+b" if path.exists() else "wb") as file:
        for name, tensor in copied_ahead(tensors):
            file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
            dtype = str(tensor.dtype).removeprefix("torch.")
            table[name] = {"dtype": dtype, "shape": list(tensor.shape), "offset": file.tell()}
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        described = json.dumps(table).encode()
        file.write(described + len(described).to_bytes(_LENGTH_BYTES, "little") + _ENDING)
        file.truncate()


def take_unread(path: Path, to: Path) -> bool:
    """Rename a file without readers, to be written anew; False for one that is being read.

    A process that has opened it, and not locked it yet, finds that its name is gone.
    """
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.replace(to)
    return True


class Mappings:
    """Files that an engine has mapped, to be found again when the learner has written them anew.

    Kept are the newest two: the one in use, and the one that is being written meanwhile.
    """

    KEPT = 2

    def __init__(self) -> None:
        self._by_inode: dict[tuple[int, int], mmap.mmap] = {}  # a file that is mapped keeps its inode

    def of(self, file: BinaryIO, size: int) -> mmap.mmap:
        status = os.fstat(file.fileno())
        inode = (status.st_dev, status.st_ino)
        known = self._by_inode.pop(inode, None)
        if known is None or len(known) != size:
            known = mmap.mmap(file.fileno(), size)
            _every_page(known)
        self._by_inode[inode] = known
        for older in list(self._by_inode)[: -self.KEPT]:
            del self._by_inode[older]
        return known


def map_packed(path: Path, like: MappedWeights, mappings: Mappings | None = None) -> MappedWeights:
    """The weights in a file, to take the place of `like`: of its names, shapes and dtypes, on its device.

    On the CPU they are the file's own memory, which stays when the file is deleted, and is not written to before the
    last of them is gone. Raises `ModelLoadError` for a file that is missing, torn or of another model.
    """
    with ExitStack() as stack:
        file = stack.enter_context(_locked(path))
        stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # closing does not do it, since a mapping keeps the file open
        table, size = _read_table(file, path)
        bytes_of_file = np.frombuffer((mappings or Mappings()).of(file, size), np.uint8)
        weakref.finalize(bytes_of_file, stack.pop_all().close)  # of which the tensors are views
    wanted, tensors = like.tensors(), dict[str, Tensor]()
    bytes_N = to_device(torch.from_numpy(bytes_of_file), next(iter(wanted.values())).device)
    for name, expected in wanted.items():
        if (entry := table.pop(name, None)) is not None:
            tensors[name] = _tensor(entry, bytes_N, name, expected, path)
        elif name != _OPTIONAL:
            raise ModelLoadError(f"{path} lacks {name!r}: it was handed over for another model")
    if table:
        raise ModelLoadError(f"{path} holds {min(table)!r}, which the engine's model does not have")
    return like.of(tensors)


def _locked(path: Path) -> BinaryIO:
    """The file, open, and not to be written to until it is closed."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("r+b"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):  # not taken before it was locked
                stack.pop_all()
                return file
        except (FileNotFoundError, BlockingIOError):
            pass
    raise ModelLoadError(f"{path} is missing: a learner keeps only the newest weights it handed over")


def _every_page(mapped: mmap.mmap) -> None:
    """Have the system lay out all pages now, and not while a decode step waits for them."""
    torch.frombuffer(mapped, dtype=torch.uint8)[:: mmap.PAGESIZE].sum()


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
