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
from whet.inference.weights import packed_file
from whet.inference.weights.model_weights import PackedWeights, pack, packed_tensors, read_checkpoint
from whet.inference.weights.packed_file import Mappings, map_packed, take_unread, write_packed

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


def test_a_file_is_not_taken_before_the_last_tensor_of_it_is_gone(checkpoints: Checkpoints, tmp_path: Path) -> None:
    packed = packed_and_written(checkpoints("qwen3")[0], tmp_path / "w")
    readers = [map_packed(tmp_path / "w", packed, mappings) for mappings in 2 * [Mappings()]]
    last = readers[0].layers[1].down
    while readers:
        assert not take_unread(tmp_path / "w", tmp_path / "taken")
        readers.pop()
    assert not take_unread(tmp_path / "w", tmp_path / "taken")
    assert torch.equal(last, packed.layers[1].down)
    del last
    assert take_unread(tmp_path / "w", tmp_path / "taken")
    assert not (tmp_path / "w").exists()


def test_weights_that_were_rounded_or_copied_leave_their_file(checkpoints: Checkpoints, tmp_path: Path) -> None:
    directory, _ = checkpoints("llama")
    packed_and_written(directory, tmp_path / "w", torch.float32)
    rounded = packed_and_written(directory, tmp_path / "other", torch.bfloat16)
    mapped = map_packed(tmp_path / "w", rounded)
    mapped.final_gain = mapped.final_gain.clone()  # float32 in either
    assert take_unread(tmp_path / "w", tmp_path / "taken")


def test_a_file_that_was_taken_while_it_was_being_opened_is_gone(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = packed_and_written(checkpoints("qwen3")[0], tmp_path / "w")
    lock = packed_file.fcntl.flock

    def taken_before(file: Any, how: int) -> None:
        monkeypatch.setattr(packed_file.fcntl, "flock", lock)
        assert take_unread(tmp_path / "w", tmp_path / "taken")
        lock(file, how)

    monkeypatch.setattr(packed_file.fcntl, "flock", taken_before)
    with pytest.raises(ModelLoadError, match="w is missing: a learner keeps only the newest"):
        map_packed(tmp_path / "w", packed)


def test_a_file_that_is_written_anew_is_not_mapped_again(
    checkpoints: Checkpoints, build_model: Callable[..., Any], tmp_path: Path
) -> None:
    """Nor does it differ from a new one, also where it has become shorter."""
    directory, _ = checkpoints("qwen3")
    arch, mappings = read_architecture(directory), Mappings()
    packed = packed_and_written(directory, tmp_path / "w1")
    places = set[int]()
    for version in range(1, 6):
        mapped = map_packed(tmp_path / f"w{version}", packed, mappings)
        places.add(mapped.embedding.data_ptr())
        del mapped
        assert take_unread(tmp_path / f"w{version}", tmp_path / f"w{version + 1}")
        named = build_model("qwen3", seed=version).state_dict()
        write_packed(tmp_path / f"w{version + 1}", packed_tensors(named, arch, dtype=torch.float32, device=CPU))
        packed = pack(named, arch, dtype=torch.float32, device=CPU)
        assert same(map_packed(tmp_path / f"w{version + 1}", packed, mappings), packed)
    assert len(places) == 1
    rounded = pack(named, arch, dtype=torch.bfloat16, device=CPU)
    write_packed(tmp_path / "w6", packed_tensors(named, arch, dtype=torch.bfloat16, device=CPU))
    assert same(map_packed(tmp_path / "w6", rounded, mappings), rounded)


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
