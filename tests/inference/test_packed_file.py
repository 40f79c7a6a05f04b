"""Weights that a learner hands over packed are those that the engine would have packed itself, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.errors import ModelLoadError
from whet.inference.architecture import read_architecture
from whet.inference.packed_file import map_packed, write_packed
from whet.inference.weights import PackedWeights, pack, packed_tensors, read_checkpoint

Checkpoints = Callable[[str], tuple[Path, Any]]
CPU = torch.device("cpu")


def packed_and_written(directory: Path, path: Path, dtype: torch.dtype = torch.float32) -> PackedWeights:
    """The weights of a checkpoint as the engine packs them, and in a file."""
    arch, named = read_architecture(directory), read_checkpoint(directory)
    write_packed(path, packed_tensors(named, arch, dtype=dtype, device=CPU))
    return pack(named, arch, dtype=dtype, device=CPU)


def same(mapped: PackedWeights, packed: PackedWeights) -> bool:
    ours, theirs = mapped.tensors(), packed.tensors()
    return ours.keys() == theirs.keys() and all(
        torch.equal(tensor, theirs[name]) and tensor.stride() == theirs[name].stride() for name, tensor in ours.items()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama", "qwen3-moe"])
def test_mapped_weights_are_the_packed_ones_and_lie_as_torch_lays_its_own(
    checkpoints: Checkpoints, tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    packed = packed_and_written(checkpoints(kind)[0], tmp_path / "w", dtype)
    mapped = map_packed(tmp_path / "w", like=packed)
    assert same(mapped, packed)
    assert {tensor.data_ptr() % 64 for tensor in mapped.tensors().values()} == {0}


def test_an_engine_of_another_dtype_rounds_them_once(checkpoints: Checkpoints, tmp_path: Path) -> None:
    directory, _ = checkpoints("qwen3")
    packed_and_written(directory, tmp_path / "w", torch.float32)
    rounded = packed_and_written(directory, tmp_path / "other", torch.bfloat16)
    assert same(map_packed(tmp_path / "w", like=rounded), rounded)


def test_the_numbers_stay_when_the_file_is_deleted(checkpoints: Checkpoints, tmp_path: Path) -> None:
    packed = packed_and_written(checkpoints("qwen3")[0], tmp_path / "w")
    mapped = map_packed(tmp_path / "w", like=packed)
    (tmp_path / "w").unlink()
    assert same(mapped, packed)


@pytest.mark.parametrize("kept", [0, 10, 5000, -1])
def test_a_file_that_was_cut_short_is_torn(checkpoints: Checkpoints, tmp_path: Path, kept: int) -> None:
    packed = packed_and_written(checkpoints("qwen3")[0], tmp_path / "w")
    size = (tmp_path / "w").stat().st_size
    os.truncate(tmp_path / "w", kept if kept >= 0 else size + kept)
    with pytest.raises(ModelLoadError, match=r"w is torn, or no weights that a learner"):
        map_packed(tmp_path / "w", like=packed)


def test_a_file_that_is_gone_says_so(checkpoints: Checkpoints, tmp_path: Path) -> None:
    packed = packed_and_written(checkpoints("qwen3")[0], tmp_path / "w")
    with pytest.raises(ModelLoadError, match="none is missing: a learner keeps only the newest"):
        map_packed(tmp_path / "none", like=packed)


@pytest.mark.parametrize(
    ("written", "held", "reason"),
    [
        ("mistral", "llama", r"lacks 'layers.0.qkv_bias': it was handed over for another model"),
        ("qwen3", "qwen3-moe", r"'layers.0.gate_up' has shape \(64, 192\); the engine's model asks for \(6, 64, 96\)"),
        ("llama", "mistral", r"holds 'layers.0.down_bias', which the engine's model does not have"),
    ],
)
def test_weights_of_another_model_are_refused_by_name(
    checkpoints: Checkpoints, tmp_path: Path, written: str, held: str, reason: str
) -> None:
    packed_and_written(checkpoints(written)[0], tmp_path / "w")
    other = packed_and_written(checkpoints(held)[0], tmp_path / "other")
    with pytest.raises(ModelLoadError, match=reason):
        map_packed(tmp_path / "w", like=other)
