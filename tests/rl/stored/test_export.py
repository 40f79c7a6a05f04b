"""`whet train export`: what is written loads in plain `transformers` and `peft`, and holds a checkpoint's weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from whet.models.tiny import path as tiny

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


def test_what_does_not_fit_is_refused_in_a_line(whole: Path, adapted: Path, tmp_path: Path, whet: Whet) -> None:
    cases = [
        ((whole, "--format", "peft"), "runs with [lora]"),
        ((adapted, "--format", "model"), "peft, or merged"),
        ((whole, "--format", "gguf"), "peft, model, merged"),
        ((whole, "--step", "7"), "there are: 1, 2, 3"),
        ((whole, "--to", tmp_path), "--overwrite"),
    ]
    for arguments, named in cases:
        code, out, err = whet("train", "export", *arguments)
        assert (code, out) == (2, "")
        assert named in err
        assert err.count("\n") == 1
