"""Engine and learner of an adapter's run compute with the same tensors, and sample what a merged copy would."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.inference.family_models import ONE_OF_EACH, write
from tests.inference.weights import gguf_files

from whet.inference.architecture import Architecture
from whet.inference.decoding.parts import WholeModel
from whet.inference.embedded import EmbeddedEngine
from whet.inference.loading import load_policy
from whet.inference.model_names import resolve_model
from whet.inference.plain.family import describe
from whet.inference.protocol import SampleRequest, SamplingParams
from whet.inference.weights import frozen_base
from whet.inference.weights.frozen_base import FrozenBase, worth_sharing
from whet.inference.weights.model_weights import read_checkpoint
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.torch_learner import TorchLearner

CPU = torch.device("cpu")


def learner(directory: Path, published: Path, dtype: str = "float32") -> TorchLearner:
    made = make_learner(
        directory,
        optimizer=OptimizerConfig(),
        lora=LoraConfig(rank=4),
        max_steps=1,
        seed=0,
        publish_directory=published,
        computation=LearnerConfig.model_validate({"dtype": dtype, "base_dtype": dtype}),
        threads=1,
    )
    for _, parameter in made.weights.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return made


def logprobs(engine: EmbeddedEngine) -> list[float]:
    request = SampleRequest([3, 9, 4, 1, 17], SamplingParams(max_tokens=8, seed=5))
    return asyncio.run(engine.sample(request)).logprobs


def own(model: Any) -> dict[str, torch.Tensor]:
    """Of the base, by the names of the checkpoint."""
    named = {name.replace(".base_layer.", "."): parameter for name, parameter in model.named_parameters()}
    return {name: parameter for name, parameter in named.items() if ".lora_" not in name}


def arch_of(directory: Path) -> Architecture:
    arch = describe(directory)
    assert isinstance(arch, Architecture)
    return arch


def is_mapped(tensor: torch.Tensor, file: Path) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(edge, 16) for edge in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return line.endswith(str(file))
    return False


@pytest.mark.parametrize("kind", [kind for kind in ONE_OF_EACH if "moe" not in kind])
def test_an_engine_over_the_learners_tensors_samples_as_one_with_merged_ones(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / "model", seed=0)
    arch = arch_of(tmp_path / "model")
    made = learner(tmp_path / "model", tmp_path / "published")
    update, sampled = made.publish(), []
    base = FrozenBase.of(tmp_path / "model", arch, torch.float32, CPU)
    weights: list[WholeModel] = [base, read_checkpoint(tmp_path / "model")]
    for named in weights:
        engine = EmbeddedEngine(arch, named)
        asyncio.run(engine.load_weights(update))
        sampled.append(logprobs(engine))
    assert sampled[0] == pytest.approx(sampled[1], abs=2e-4)
    parameters = own(made.weights.model)
    assert parameters.keys() == base.keys()
    assert all(parameters[name].data_ptr() == base.tensors[name].data_ptr() for name in base)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_file_has_in_the_right_dtype_is_the_file(dtype: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    write("qwen3", directory, seed=0)
    file = directory / "model.safetensors"
    save_file(
        {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(file).items()},
        file,
        metadata={"format": "pt"},
    )
    made, arch = learner(directory, tmp_path / "published", dtype), arch_of(directory)
    parameters = own(made.weights.model)
    assert all(is_mapped(parameter, file) for parameter in parameters.values() if parameter.dim() == 2)
    assert {parameter.dtype for parameter in parameters.values() if parameter.dim() == 1} == {torch.float32}
    before = FrozenBase.of(directory, arch, getattr(torch, dtype), CPU)
    other = FrozenBase.of(directory, arch, torch.float32 if dtype == "bfloat16" else torch.bfloat16, CPU)
    assert not any(is_mapped(tensor, file) for tensor in other.tensors.values() if tensor.dim() == 2)
    for name, tensor in before.tensors.items():
        assert torch.equal(tensor.float(), other.tensors[name].float()) or dtype == "float32"


def test_a_gguf_file_is_not_written_in_float32_for_a_base_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf_files.write(tmp_path / "model.gguf", "llama", gguf.GGMLQuantizationType.Q8_0)
    directory = resolve_model(str(tmp_path / "model.gguf"))
    half = FrozenBase.of(directory, arch_of(directory), torch.bfloat16, CPU)
    assert not (directory / "model.safetensors").exists()
    whole = FrozenBase.of(directory, arch_of(directory), torch.float32, CPU)
    assert half.keys() == whole.keys()
    for name in half:
        assert torch.equal(half.tensors[name], whole.tensors[name].to(half.tensors[name].dtype))


def test_a_large_base_is_shared_by_a_policy_and_a_small_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = resolve_model("whet/tiny")
    assert not worth_sharing(directory, arch_of(directory))
    made = learner(directory, tmp_path)
    update = made.publish()
    merged = load_policy("whet/tiny", base_dtype="float32").engine
    monkeypatch.setattr(frozen_base, "COPIED", 1 << 10)
    shared = load_policy("whet/tiny", base_dtype="float32").engine
    parameters = own(made.weights.model)
    held = shared._weight_loader.base
    assert isinstance(held, FrozenBase)
    assert all(held.tensors[name].data_ptr() == parameters[name].data_ptr() for name in parameters)
    sampled = []
    for engine in (merged, shared):
        asyncio.run(engine.load_weights(update))
        sampled.append(logprobs(engine))
    assert sampled[0] == pytest.approx(sampled[1], abs=1e-4)


def test_a_base_of_a_process_ends_with_its_last_user(tmp_path: Path) -> None:
    write("llama", tmp_path, seed=0)
    arch = arch_of(tmp_path)
    first = FrozenBase.of(tmp_path, arch, torch.float32, CPU)
    assert FrozenBase.of(tmp_path, arch, torch.float32, "cpu") is first
    del first
    assert not any(key[0] == Path(os.path.realpath(tmp_path)) for key in frozen_base._HELD)
