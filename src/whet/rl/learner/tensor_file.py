"""safetensors files written one tensor after the other, so that a model need not be held a second time.

`TensorStream` is what is to be written: names, types and shapes at once, and each tensor when its turn comes. Files are
byte for byte those of the safetensors library, which takes all tensors at once and copies them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from whet.errors import RunError
from whet.inference.weights.model_weights import SAFETENSORS_DTYPES
from whet.rl.learner.whole import Whole

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


def copy_in(parameters: Mapping[str, nn.Parameter], path: Path, whole: Whole) -> None:
    """Fill parameters from a file that holds exactly these names and shapes."""
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            expected = {name: tuple(p.shape) for name, p in parameters.items()}
            if found != expected:
                raise _of_another_model(path, found, expected)
            for name, parameter in parameters.items():
                own = whole.own(parameter)
                rows = whole.rows(parameter)
                own.copy_(file.get_tensor(name) if rows is None else file.get_slice(name)[rows])
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot read the saved weights: {error}") from None


def _of_another_model(
    path: Path, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> RunError:
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return RunError(
        f"{path} was saved from another model: {len(wrong)} tensors differ, the first is {wrong[0]} "
        f"(saved {found.get(wrong[0])}, expected {expected.get(wrong[0])}). "
        "Resume with the model the run began with."
    )
