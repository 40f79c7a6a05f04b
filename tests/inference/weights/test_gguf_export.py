"""GGUF files that whet writes: read back by whet and `transformers`, they hold the weights that were given."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.inference.weights import gguf_files
from transformers import AutoModelForCausalLM, MistralConfig

from whet.errors import ConfigError
from whet.inference.model_names import resolve_model
from whet.inference.weights.gguf_export import write_gguf, write_gguf_adapter
from whet.inference.weights.gguf_tensors import complete
from whet.inference.weights.model_weights import read_checkpoint
from whet.models.tiny import path as tiny

ARCHITECTURES = ["llama", "qwen2", "qwen3"]
ids = torch.randint(0, 200, (2, 40), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def changed(directory: Path, target: Path) -> Path:
    """The same model after training: every weight is another."""
    model = AutoModelForCausalLM.from_pretrained(complete(directory), dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    model.save_pretrained(target)
    return target


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_trained_weights_come_back_in_float16(tmp_path: Path, architecture: str, tied: bool) -> None:
    original, written = tmp_path / "model.gguf", tmp_path / "trained.gguf"
    # of a Qwen3's heads transformers reads no other width
    gguf_files.write(original, architecture, tied=tied, dim=128 if architecture == "qwen3" else 16)
    trained = changed(resolve_model(str(original)), tmp_path / "trained")
    write_gguf(trained, written, original)
    named, back = read_checkpoint(trained), read_checkpoint(resolve_model(str(written)))
    assert {
        name: back[name].equal(tensor if tensor.dim() == 1 else tensor.half().float()) for name, tensor in named.items()
    } == dict.fromkeys(named, True)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=written.name, dtype=torch.float32)
    half = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    with torch.no_grad():
        for weight in half.parameters():
            if weight.dim() > 1:
                weight.copy_(weight.half().float())
        assert (theirs(ids).logits - half(ids).logits).abs().max() <= 1e-5


def test_metadata_is_that_of_the_original(tmp_path: Path) -> None:
    original, written = tmp_path / "model.gguf", tmp_path / "again.gguf"
    gguf_files.write(original)
    write_gguf(resolve_model(str(original)), written)
    before, after = gguf.GGUFReader(original), gguf.GGUFReader(written)
    own = {"GGUF.kv_count", "general.file_type"}
    assert {name: field.contents() for name, field in after.fields.items() if name not in own} == {
        name: field.contents() for name, field in before.fields.items() if name not in own
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_adapter_added_to_the_original_is_the_merged_model(tmp_path: Path, architecture: str) -> None:
    original, merged = tmp_path / "model.gguf", tmp_path / "merged.gguf"
    gguf_files.write(original, architecture, gguf.GGMLQuantizationType.F32)
    base = resolve_model(str(original))
    config = LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(complete(base), dtype=torch.float32), config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(2)).mul_(0.1)
    model.save_pretrained(tmp_path / "adapter")
    write_gguf_adapter(tmp_path / "adapter", base, tmp_path / "adapter.gguf")
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    write_gguf(tmp_path / "merged", merged, original)

    pairs = gguf.GGUFReader(tmp_path / "adapter.gguf")
    scale = pairs.fields["adapter.lora.alpha"].contents() / 4
    found = {one.name: one.data for one in pairs.tensors}
    assert pairs.fields["general.type"].contents() == "adapter"
    assert len(found) == 2 * 5 * gguf_files.LAYERS
    before = {one.name: one.data for one in gguf.GGUFReader(original).tensors}
    for one in gguf.GGUFReader(merged).tensors:
        if f"{one.name}.lora_a" in found:
            whole = before[one.name] + scale * found[f"{one.name}.lora_b"] @ found[f"{one.name}.lora_a"]
            assert np.abs(whole - one.data.astype(np.float32)).max() <= 2e-3  # float16


def test_a_model_that_never_was_a_gguf_file_needs_one_for_its_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--metadata-from"):
        write_gguf(tiny(), tmp_path / "tiny.gguf")


def test_metadata_of_another_model_is_refused(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="another model"):
        write_gguf(tiny(), tmp_path / "tiny.gguf", tmp_path / "model.gguf")
    assert not (tmp_path / "tiny.gguf").exists()


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    original = tmp_path / "model.gguf"
    gguf_files.write(original)
    model = AutoModelForCausalLM.from_pretrained(complete(resolve_model(str(original))), dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = 1e6
    model.save_pretrained(tmp_path / "large")
    with pytest.raises(ConfigError, match="float16"):
        write_gguf(tmp_path / "large", tmp_path / "large.gguf", original)
    assert sorted(path.name for path in tmp_path.glob("*large.gguf*")) == []


def test_sliding_windows_are_not_written(tmp_path: Path) -> None:
    config = MistralConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="this mistral model has sliding windows"):
        write_gguf(tmp_path, tmp_path / "model.gguf")
