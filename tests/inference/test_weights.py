"""Reading, fusing and updating weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.errors import ModelLoadError
from whet.inference.architecture import read_architecture
from whet.inference.weights import pack, read_checkpoint

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


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.2.self_attn.q_norm.weight"])
def test_a_missing_or_misshapen_tensor_is_named(checkpoints: Checkpoints, name: str) -> None:
    directory, _ = checkpoints("qwen3")
    arch, named = read_architecture(directory), read_checkpoint(directory)
    with pytest.raises(ModelLoadError, match=name):
        pack({**named, name: torch.zeros(3)}, arch, dtype=torch.float32, device=torch.device("cpu"))
    del named[name]
    with pytest.raises(ModelLoadError, match=name):
        pack(named, arch, dtype=torch.float32, device=torch.device("cpu"))
