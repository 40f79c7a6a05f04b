"""Reading, fusing and updating weights."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from whet.errors import ModelLoadError
from whet.inference.architecture import read_architecture
from whet.inference.weights.model_weights import pack, read_checkpoint
from whet.inference.weights.safetensors_files import read_safetensors

Checkpoints = Callable[[str], tuple[Path, Any]]


def test_a_sharded_checkpoint_reads_like_a_single_file(checkpoints: Checkpoints, tmp_path: Path) -> None:
    directory, model = checkpoints("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    single, sharded = read_checkpoint(directory), read_checkpoint(tmp_path)
    assert single.keys() == sharded.keys()
    assert all(torch.equal(single[name], sharded[name]) for name in single)


def test_a_missing_shard_is_named(checkpoints: Checkpoints, tmp_path: Path) -> None:
    _, model = checkpoints("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelLoadError, match=shard.name):
        read_checkpoint(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="holds no weights"):
        read_checkpoint(tmp_path)


def test_tensors_of_every_kind_and_shape_read_as_the_library_reads_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    numbers = torch.randn(3, 5) * 4
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8)
    tensors = {str(kind): numbers.abs().to(kind) for kind in (*kinds, torch.bool)}
    tensors |= {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4), "deep": torch.randn(2, 1, 3, 2)}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    read, expected = read_safetensors([path]), load_file(path)
    assert read.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_data_that_begins_at_any_byte_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (1 - len(header) % 2)  # an odd length, where other writers pad to eight
    data = torch.tensor([1.5, -2.0]).numpy().tobytes()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    assert read_safetensors([path])["w"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize("cut", [1, 8, 40, 10_000])
def test_a_file_that_was_cut_off_is_torn(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is torn"):
        read_safetensors([path])


def test_numbers_that_nobody_reads_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(2, dtype=torch.complex64)}, path)
    with pytest.raises(ModelLoadError, match="'w' holds numbers of type C64"):
        read_safetensors([path])


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    """Weights are read after every step of a run: a few bytes a tensor would be megabytes."""
    path = tmp_path / "model.safetensors"
    save_file({f"w{number}": torch.zeros(300, 400) for number in range(20)}, path)
    read_safetensors([path])
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(50):
            read_safetensors([path])
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 20 * 50 * 8  # bytes; the library leaves 56 a tensor
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.2.self_attn.q_norm.weight"])
def test_a_missing_or_misshapen_tensor_is_named(checkpoints: Checkpoints, name: str) -> None:
    directory, _ = checkpoints("qwen3")
    arch, named = read_architecture(directory), read_checkpoint(directory)
    with pytest.raises(ModelLoadError, match=name):
        pack({**named, name: torch.zeros(3)}, arch, dtype=torch.float32, device=torch.device("cpu"))
    del named[name]
    with pytest.raises(ModelLoadError, match=name):
        pack(named, arch, dtype=torch.float32, device=torch.device("cpu"))
