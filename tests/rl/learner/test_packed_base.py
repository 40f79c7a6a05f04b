"""LoRA on a base in the blocks of a GGUF file: the numbers are those of the same base in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.inference.weights import gguf_files

from whet.errors import ConfigError
from whet.inference.architecture import Architecture
from whet.inference.model_names import resolve_model
from whet.inference.plain.family import describe
from whet.rl.config import RunConfig
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.learner.torch_learner import TorchLearner
from whet.rl.memory import memory_parts, trained_count
from whet.rl.sections.algorithm import LossConfig

KINDS = gguf.GGMLQuantizationType


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf_files.write(tmp_path / "model.gguf", "llama", KINDS.Q4_1, tied=True)
    return resolve_model(str(tmp_path / "model.gguf"))


def learner(directory: Path, base: str, **computation: Any) -> TorchLearner:
    return make_learner(
        directory,
        optimizer=OptimizerConfig(),
        lora=LoraConfig.model_validate({"rank": 4, "base": base}),
        max_steps=2,
        seed=0,
        publish_directory=directory / f"published-{base}",
        computation=LearnerConfig(**computation),
        threads=1,
    )


def batch() -> Any:
    rng, sequences = np.random.default_rng(0), []
    for number in range(4):
        ids, trained = rng.integers(3, 250, 24).astype(np.int32), np.arange(24) >= 10
        zeros = np.zeros(24, np.float32)
        sequences.append(TokenSequence(ids, trained, zeros, np.zeros(24, np.int32), rollout=str(number)))
    return pack(sequences, np.ones(4))


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_a_step_equals_one_on_the_dequantised_base(directory: Path, recompute: bool) -> None:
    both = [learner(directory, base, activation_checkpointing=recompute) for base in ("packed", "dense")]
    for one in both:
        for _, parameter in one.weights.parameters():  # B is zero at first, and then A has no gradient
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    packed, dense = [one.forward_backward(batch(), LossConfig(loss="cross_entropy")) for one in both]
    assert packed.loss == pytest.approx(dense.loss, rel=1e-6)
    for (name, ours), (_, theirs) in zip(both[0].weights.parameters(), both[1].weights.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert float((ours.grad - theirs.grad).norm()) <= 1e-5 * float(theirs.grad.norm()), name


def test_it_counts_parameters_and_not_bytes(directory: Path) -> None:
    packed, dense = learner(directory, "packed"), learner(directory, "dense")
    assert packed.parameters == dense.parameters
    assert packed.trained_parameters == dense.trained_parameters


def test_a_merged_export_is_dequantised(directory: Path, tmp_path: Path) -> None:
    one, other = learner(directory, "packed"), learner(directory, "dense")
    for each in (one, other):
        each.forward_backward(batch(), LossConfig(loss="cross_entropy"))
        each.optim_step(OptimParams(1e-2, denominator=50, max_grad_norm=1.0))
    one.export_merged(tmp_path / "packed", "float32")
    other.export_merged(tmp_path / "dense", "float32")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("packed", "dense"))
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5)


def test_a_dry_run_counts_the_file_once(directory: Path, tmp_path: Path) -> None:
    tables = {"name": "r", "env": [{"id": "reverse-text"}], "lora": {"base": "packed"}}
    config = RunConfig.model_validate({**tables, "model": str(tmp_path / "model.gguf")})
    arch = describe(directory)
    assert isinstance(arch, Architecture)
    parts = memory_parts(arch, config)
    assert parts["base, mapped"] == (tmp_path / "model.gguf").stat().st_size
    assert parts["sampler: weights"] == 0
    assert parts["learner: weights"] == 4 * trained_count(arch, config.lora)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"inference": {"engine": "vllm"}}, 'Set inference.engine = "embedded", or lora.base = "dense"'),
        ({"learner": {"ranks": 2}}, "set learner.ranks = 1"),
        ({"learner": {"dtype": "bfloat16", "base_dtype": "bfloat16"}}, "base_dtype would have no effect"),
    ],
)
def test_what_a_packed_base_cannot_have_is_refused(tables: dict[str, Any], says: str) -> None:
    config = {"name": "r", "model": "m.gguf", "env": [{"id": "reverse-text"}], "lora": {"base": "packed"}, **tables}
    with pytest.raises((ConfigError, ValueError), match=says):
        RunConfig.model_validate(config)
