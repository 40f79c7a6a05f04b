"""Reading, fusing and updating weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from whet.errors import ModelLoadError
from whet.inference.architecture import read_architecture
from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import SampleRequest, SamplingParams, WeightUpdate
from whet.inference.weights import pack, read_checkpoint

Checkpoints = Callable[[str], tuple[Path, Any]]
Build = Callable[..., Any]


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


@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_samples_like_peft_and_leaves_the_base_alone(
    reference: Callable[..., torch.Tensor], build_model: Build, checkpoints: Checkpoints, tmp_path: Path, rslora: bool
) -> None:
    directory, _ = checkpoints("qwen3")
    engine = EmbeddedEngine.from_directory(directory)
    request = SampleRequest([1, 2, 3, 4], SamplingParams(max_tokens=20, seed=1))
    for version, seed in ((1, 0), (2, 1)):
        torch.manual_seed(seed)
        config = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", init_lora_weights=False, use_rslora=rslora)
        model = get_peft_model(build_model("qwen3"), config)
        model.save_pretrained(tmp_path / str(version))
        update = WeightUpdate(version=version, path=tmp_path / str(version), kind="adapter", adapter="policy")
        asyncio.run(engine.load_weights(update))
        sample = asyncio.run(engine.sample(request))
        expected = reference(model, request.prompt_ids, sample.ids)
        torch.testing.assert_close(expected, torch.tensor(sample.logprobs), atol=5e-5, rtol=0)
    assert (engine.version, engine.adapter) == (2, "policy")


def test_an_adapter_that_is_more_than_lora_is_refused_by_name(checkpoints: Checkpoints, tmp_path: Path) -> None:
    engine = EmbeddedEngine.from_directory(checkpoints("qwen3")[0])
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "use_dora": True, "r": 4}))
    with pytest.raises(ModelLoadError, match="use_dora"):
        asyncio.run(engine.load_weights(WeightUpdate(version=1, path=tmp_path, kind="adapter")))
    with pytest.raises(ModelLoadError, match="adapter_config"):
        asyncio.run(engine.load_weights(WeightUpdate(version=1, path=tmp_path / "none", kind="adapter")))
