"""`whet train export`: what is written loads in plain `transformers` and `peft`, and holds a checkpoint's weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import gguf
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.inference.weights import gguf_files
from transformers import AutoModelForCausalLM, AutoTokenizer

from whet.errors import ConfigError
from whet.inference.model_names import resolve_model
from whet.inference.weights.model_weights import read_checkpoint
from whet.models.tiny import path as tiny
from whet.rl.learner.make import load_model
from whet.rl.learner.weights import FullWeights
from whet.rl.stored.export import export_checkpoint

Whet = Callable[..., tuple[int, str, str]]
IDS = torch.tensor([[1, 2, 3, 4, 5]])


def test_a_whole_model_is_that_of_the_checkpoint_and_loads_in_transformers(
    whole: Path, tmp_path: Path, whet: Whet
) -> None:
    target = tmp_path / "model"
    code, out, _ = whet("train", "export", whole, "--step", "2", "--to", target, "--json")
    assert code == 0
    assert json.loads(out)["format"] == "model"
    model = AutoModelForCausalLM.from_pretrained(target)
    saved = load_file(whole / "checkpoints" / "step_2" / "weights.safetensors")
    weights = dict(model.named_parameters())
    assert all(torch.equal(weights[name], tensor) for name, tensor in saved.items())
    assert AutoTokenizer.from_pretrained(target).encode("abc")


def test_an_adapter_loads_in_peft_and_is_what_the_merged_model_computes(
    adapted: Path, tmp_path: Path, whet: Whet
) -> None:
    assert whet("train", "export", adapted, "--to", tmp_path / "peft")[0] == 0
    assert whet("train", "export", adapted, "--format", "merged", "--to", tmp_path / "merged")[0] == 0
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(tiny(), dtype=torch.float32)
        plain = base(IDS).logits
        adapter = PeftModel.from_pretrained(base, tmp_path / "peft").eval()(IDS).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()(IDS).logits
    torch.testing.assert_close(adapter, merged, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(adapter, plain, rtol=1e-4, atol=1e-4)


def test_the_gguf_file_of_an_adapter_has_the_same_pairs(adapted: Path, tmp_path: Path, whet: Whet) -> None:
    target = tmp_path / "adapter.gguf"
    code, out, _ = whet("train", "export", adapted, "--to", target, "--json")
    assert (code, json.loads(out)["format"]) == (0, "gguf")
    assert whet("train", "export", adapted, "--to", tmp_path / "peft")[0] == 0
    saved = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    file = gguf.GGUFReader(target)
    found = {one.name: torch.from_numpy(one.data.copy()) for one in file.tensors}
    assert len(found) == len(saved)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    assert torch.equal(found["blk.0.attn_q.weight.lora_b"], saved[name].float())
    assert file.fields["adapter.type"].contents() == "lora"
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert file.fields["adapter.lora.alpha"].contents() == config["lora_alpha"]


def test_a_whole_model_that_was_read_from_a_gguf_file_is_written_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf_files.write(tmp_path / "model.gguf")
    base = resolve_model(str(tmp_path / "model.gguf"))
    trained = FullWeights(load_model(base), base, torch.float32)
    with torch.no_grad():
        for _, weight in trained.parameters():
            weight.mul_(1.25)
    (tmp_path / "checkpoint").mkdir()
    trained.save(tmp_path / "checkpoint")
    written = export_checkpoint(base, None, tmp_path / "checkpoint", tmp_path / "trained.gguf", "gguf")
    before, after = read_checkpoint(base), read_checkpoint(resolve_model(str(written)))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], 1.25 * tensor, rtol=1e-3, atol=1e-4)
    assert [path.name for path in tmp_path.glob("*trained*")] == ["trained.gguf"]


def test_a_family_that_gguf_files_are_not_written_for_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    config = json.loads((tiny() / "config.json").read_text())
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True}
    (tmp_path / "config.json").write_text(json.dumps({**config, **experts, "model_type": "qwen3_moe"}))
    with pytest.raises(ConfigError, match="qwen3_moe are not written as GGUF by whet; it writes llama, mistral, qwen2"):
        export_checkpoint(tmp_path, None, tmp_path / "no-checkpoint", tmp_path / "trained.gguf", "gguf")


def test_what_does_not_fit_is_refused_in_a_line(whole: Path, adapted: Path, tmp_path: Path, whet: Whet) -> None:
    cases = [
        ((whole, "--format", "peft"), "runs with [lora]"),
        ((adapted, "--format", "model"), "peft, or merged"),
        ((whole, "--format", "onnx"), "peft, model, merged, gguf"),
        ((whole, "--format", "gguf"), "--metadata-from"),
        ((whole, "--format", "gguf", "--metadata-from", tmp_path / "none.gguf"), "no GGUF file"),
        ((whole, "--metadata-from", tmp_path / "none.gguf"), "is for --format gguf"),
        ((adapted, "--format", "gguf", "--metadata-from", tmp_path / "none.gguf"), "is for whole models"),
        ((adapted, "--format", "gguf", "--to", tmp_path / "adapter"), "ends in .gguf"),
        ((adapted, "--format", "merged", "--to", tmp_path / "merged.gguf"), "ends in .gguf"),
        ((whole, "--step", "7"), "there are: 1, 2, 3"),
        ((whole, "--to", tmp_path), "--overwrite"),
    ]
    for arguments, named in cases:
        code, out, err = whet("train", "export", *arguments)
        assert (code, out) == (2, "")
        assert named in err
        assert err.count("\n") == 1
