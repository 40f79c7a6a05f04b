"""A base in nf4 and int8: learner and engine compute what its dequantised weights compute, from one file."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.loading import load_policy
from whet.inference.model_names import resolve_model
from whet.inference.plain.family import OtherFamily, describe
from whet.inference.protocol import SampleRequest, SamplingParams
from whet.inference.weights.gguf_cache import INDEX
from whet.inference.weights.quantised_base import QuantisedBase, QuantisedMatrix, check_quantised
from whet.rl.config import RunConfig
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.torch_learner import TorchLearner
from whet.rl.plan import plan_training
from whet.rl.sections.algorithm import LossConfig
from whet.rl.stored.export import export_checkpoint

FORMS = pytest.mark.parametrize("form", ["nf4", "int8"])


@pytest.fixture
def library() -> None:
    pytest.importorskip("bitsandbytes", reason="the extra 'quantised' is not installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def base_of(directory: Path, form: Any) -> QuantisedBase:
    arch = describe(directory)
    assert isinstance(arch, Architecture)
    return QuantisedBase.of(directory, arch, form)


def dequantised(form: str, directory: Path) -> Path:
    """whet/tiny with the values that its quantised layers stand for."""
    tiny = resolve_model("whet/tiny")
    shutil.copytree(tiny, directory)
    tensors, base = load_file(directory / "model.safetensors"), base_of(tiny, form)
    for name in tensors:
        matrix = base.get(name)
        if isinstance(matrix, QuantisedMatrix):
            tensors[name] = matrix.dense()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def learner(directory: Path, base: str, published: Path, **computation: Any) -> TorchLearner:
    made = make_learner(
        directory,
        optimizer=OptimizerConfig(),
        lora=LoraConfig.model_validate({"rank": 4, "base": base}),
        max_steps=2,
        seed=0,
        publish_directory=published,
        computation=LearnerConfig(**computation),
        threads=1,
    )
    for _, parameter in made.weights.parameters():  # B is zero at first, and then A has no gradient
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return made


def batch() -> Any:
    rng, sequences = np.random.default_rng(0), []
    for number in range(4):
        ids, trained = rng.integers(3, 250, 24).astype(np.int32), np.arange(24) >= 10
        zeros = np.zeros(24, np.float32)
        sequences.append(TokenSequence(ids, trained, zeros, np.zeros(24, np.int32), rollout=str(number)))
    return pack(sequences, np.ones(4))


@pytest.mark.parts
@pytest.mark.usefixtures("library")
@FORMS
def test_gradients_and_logprobs_are_those_of_the_dequantised_weights(form: str, tmp_path: Path) -> None:
    dense = dequantised(form, tmp_path / "dense")
    ours = learner(resolve_model("whet/tiny"), form, tmp_path / "ours", activation_checkpointing=True)
    theirs = learner(dense, "dense", tmp_path / "theirs")
    found, expected = (each.forward_backward(batch(), LossConfig(loss="cross_entropy")) for each in (ours, theirs))
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert ours.parameters == theirs.parameters
    for (name, one), (_, other) in zip(ours.weights.parameters(), theirs.weights.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert float((one.grad - other.grad).norm()) <= 1e-5 * float(other.grad.norm()), name
    request = SampleRequest([5, 9, 40, 77, 8, 120], SamplingParams(max_tokens=12, temperature=0.0))
    sampled, computed = (
        asyncio.run(load_policy(str(path), dtype=dtype).engine.sample(request)).logprobs
        for path, dtype in (("whet/tiny", form), (str(dense), "float32"))
    )
    assert sampled == pytest.approx(computed, rel=1e-5, abs=1e-6)


@pytest.mark.parts
@pytest.mark.usefixtures("library")
@FORMS
def test_rounding_is_that_of_the_format(form: str) -> None:
    weights = load_file(resolve_model("whet/tiny") / "model.safetensors")
    base = base_of(resolve_model("whet/tiny"), form)
    matrices = {name: matrix for name in base if isinstance(matrix := base[name], QuantisedMatrix)}
    assert {name.rpartition("_proj")[0].rpartition(".")[2] for name in matrices} == set("qkvo") | {"gate", "up", "down"}
    for name, matrix in matrices.items():
        error = matrix.dense() - weights[name].float()
        scale = weights[name].float().abs().amax(1, keepdim=True)
        assert float((error / scale).abs().max()) <= (0.16 if form == "nf4" else 0.5001 / 127), name
        rows = torch.tensor([3, 0, 3])
        assert torch.equal(matrix.select(rows), matrix.dense()[rows])


@pytest.mark.parts
@pytest.mark.usefixtures("library")
def test_a_process_has_one_base_and_the_cache_one_file(tmp_path: Path) -> None:
    directory = shutil.copytree(resolve_model("whet/tiny"), tmp_path / "own")
    first, second = base_of(directory, "nf4"), base_of(directory, "nf4")
    assert first is second
    (file,) = (tmp_path / "cache" / "whet" / "quantised").rglob("*.safetensors")
    written = file.stat().st_mtime_ns
    del first, second
    base_of(directory, "nf4")
    assert file.stat().st_mtime_ns == written


@pytest.mark.parts
@pytest.mark.usefixtures("library")
def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    shutil.copytree(resolve_model("whet/tiny"), tmp_path / "odd")
    config = json.loads((tmp_path / "odd" / "config.json").read_text())
    size, narrow = config["intermediate_size"], config["intermediate_size"] - 8
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config | {"intermediate_size": narrow}))
    tensors = load_file(tmp_path / "odd" / "model.safetensors")
    tensors = {
        name: tensor[:, :narrow].contiguous() if tensor.shape[-1] == size else tensor
        for name, tensor in tensors.items()
    }
    save_file(tensors, tmp_path / "odd" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=rf"has rows of {narrow} weights, and nf4 is for multiples of 64"):
        base_of(tmp_path / "odd", "nf4")


@pytest.mark.parts
@pytest.mark.usefixtures("library")
def test_a_merged_export_adds_the_adapter_to_what_it_was_trained_on(tmp_path: Path) -> None:
    tiny, lora = resolve_model("whet/tiny"), LoraConfig.model_validate({"rank": 4, "base": "nf4"})
    one, name = learner(tiny, "nf4", tmp_path / "published"), "model.layers.0.mlp.down_proj.weight"
    (tmp_path / "checkpoint").mkdir()
    one.weights.save(tmp_path / "checkpoint")
    one.export_merged(tmp_path / "at-the-end", "float32")
    export_checkpoint(tiny, lora, tmp_path / "checkpoint", tmp_path / "later", "merged")
    ended, later = (load_file(tmp_path / each / "model.safetensors") for each in ("at-the-end", "later"))
    assert ended.keys() == later.keys()
    assert all(torch.equal(ended[each], later[each]) for each in ended)
    trained = dict(one.weights.parameters())
    down, up = (next(t for each, t in trained.items() if f"0.mlp.down_proj.lora_{part}" in each) for part in "AB")
    matrix = base_of(tiny, "nf4")[name]
    assert isinstance(matrix, QuantisedMatrix)
    torch.testing.assert_close(later[name], matrix.dense() + lora.alpha / lora.rank * (up @ down).detach())


def test_without_bitsandbytes_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = shutil.copytree(resolve_model("whet/tiny"), tmp_path / "own")  # which no other test has loaded
    monkeypatch.setattr("whet.inference.devices.find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"nf4 needs the 'quantised' extra.*pip install 'whet\[quantised\]'"):
        load_policy(str(own), dtype="nf4")
    tables = {"name": "r", "model": "whet/tiny", "env": [{"id": "reverse-text"}], "lora": {"base": "int8"}}
    assert plan_training(RunConfig.model_validate(tables)).missing == (
        "lora.base = \"int8\": int8 needs the 'quantised' extra. Install it with: pip install 'whet[quantised]'",
    )


def test_a_gguf_file_a_gpu_of_another_kind_and_experts_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("whet.inference.devices.find_spec", lambda name: True)
    tiny = resolve_model("whet/tiny")
    arch = describe(tiny)
    with pytest.raises(ModelLoadError, match="nf4 is computed with on a CPU or on CUDA, not on mps"):
        check_quantised(tiny, arch, "nf4", "mps")
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(ModelLoadError, match='GGUF file, which is quantised as it is: use "packed"'):
        check_quantised(tmp_path, arch, "nf4", "cpu")
    with pytest.raises(ModelLoadError, match="int8 is for models without experts"):
        check_quantised(tiny, OtherFamily("bloom", 100, 100, "bloom"), "int8", "cpu")
