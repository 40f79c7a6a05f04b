"""A learner on each device: the same steps as on the CPU, and files that every device reads."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from whet.errors import ConfigError
from whet.rl.data.batch import pack
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.forward import attention
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import LossConfig

LORA = LoraConfig(rank=4, alpha=8.0)
PARTS = {
    "all weights": ({}, LossConfig()),
    "adapter": ({"lora": LORA}, LossConfig()),
    "reference": ({"reference": "initial"}, LossConfig(kl_coef=0.1, entropy_coef=0.01)),
    "adapter and reference": ({"lora": LORA, "reference": "initial"}, LossConfig(kl_coef=0.1)),
    "recomputed": ({"activation_checkpointing": True}, LossConfig()),
}


def step(learner, batch, loss):
    output = learner.forward_backward(batch, loss)
    return output, learner.optim_step(OptimParams(learning_rate=1e-3, denominator=output.tokens))


def saved(learner, directory):
    directory.mkdir()
    learner.save(directory)
    (path,) = directory.glob("*.safetensors")
    return load_file(path)


@pytest.mark.parametrize("part", PARTS)
def test_steps_agree_with_those_of_a_cpu(part, device, make, batch, tmp_path):
    options, loss = PARTS[part]
    results = []
    for place in (device, "cpu"):
        learner = make(device=place, **options)
        assert {p.device.type for p in learner.weights.model.parameters()} == {place}
        outputs = [step(learner, batch, loss) for _ in range(2)]
        results.append((outputs, saved(learner, tmp_path / f"{len(results)}"), learner.token_logprobs(batch)))
    (ours, our_weights, our_logprobs), (theirs, their_weights, their_logprobs) = results
    for (seen, updated), (expected, expected_update) in zip(ours, theirs, strict=True):
        assert seen.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-5)
        assert updated.grad_norm == pytest.approx(expected_update.grad_norm, rel=1e-4)
    assert np.abs(our_logprobs - their_logprobs).max() < 1e-3
    assert our_weights.keys() == their_weights.keys()
    for name, tensor in our_weights.items():
        assert (tensor - their_weights[name]).abs().max() < 2e-4


def test_a_checkpoint_continues_on_its_device_bit_for_bit(device, make, batch, tmp_path):
    first = make(device=device)
    step(first, batch, LossConfig())
    saved(first, tmp_path / "step_1")
    second = make(device=device)
    second.load(tmp_path / "step_1")
    for learner in (first, second):
        step(learner, batch, LossConfig())
    one, other = saved(first, tmp_path / "one"), saved(second, tmp_path / "other")
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("lora", [None, LORA])
def test_weights_of_every_device_are_handed_over_in_files_that_a_cpu_reads(lora, device, make, batch, tmp_path):
    learner = make(device=device, lora=lora)
    step(learner, batch, LossConfig())
    path = learner.publish().path
    learner.export(tmp_path / "exported")
    files = [path] if path.is_file() else [path / "adapter_model.safetensors"]
    assert all(file.stat().st_size for file in files)
    (exported,) = (tmp_path / "exported").glob("*.safetensors")
    assert {tensor.device.type for tensor in load_file(exported).values()} == {"cpu"}


def test_a_device_that_is_not_there_is_refused_before_the_model_is_loaded(make):
    with pytest.raises(ConfigError, match=r'^\[learner\] device = "cuda:4096"'):
        make(device="cuda:4096")


def test_a_base_in_bfloat16_takes_half_the_memory_and_trains_the_same_adapter(device, make, batch, tmp_path):
    results = {}
    for base in ("float32", "bfloat16"):
        learner = make(device=device, lora=LORA, dtype="bfloat16", base_dtype=base)
        frozen = [p for p in learner.weights.model.parameters() if not p.requires_grad]
        matrices, rest = ([p for p in frozen if (p.ndim > 1) == kind] for kind in (True, False))
        assert {p.dtype for p in matrices} == {getattr(torch, base)}
        assert {p.dtype for p in rest} == {torch.float32}
        assert {p.dtype for _, p in learner.weights.parameters()} == {torch.float32}
        outputs = [step(learner, batch, LossConfig()) for _ in range(3)]
        learner.export_merged(tmp_path / base)
        results[base] = outputs, sum(p.nbytes for p in matrices)
    (exact, whole), (half, memory) = results["float32"], results["bfloat16"]
    assert memory * 2 == whole
    for (seen, updated), (expected, expected_update) in zip(half, exact, strict=True):
        assert seen.loss == pytest.approx(expected.loss, rel=0.05, abs=0.05)
        assert updated.grad_norm == pytest.approx(expected_update.grad_norm, rel=0.05)


def test_a_mixture_of_experts_learns_as_on_a_cpu(device, tmp_path, sequences):
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(Qwen3MoeConfig(**sizes, **heads, **experts)).save_pretrained(tmp_path)
    options = {"optimizer": OptimizerConfig(), "lora": None, "max_steps": 1, "seed": 0, "publish_directory": tmp_path}
    batch = pack(sequences, np.ones(len(sequences)))
    found = []
    for place, half in ((device, False), ("cpu", False), (device, True)):
        dtype = "bfloat16" if half else "float32"
        computation = LearnerConfig(device=place, dtype=dtype, weights_dtype=dtype)
        learner = make_learner(tmp_path, computation=computation, **options)
        output, updated = step(learner, batch, LossConfig())
        found.append((output.loss, updated.grad_norm))
    ours, theirs, rounded = found
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert rounded == pytest.approx(theirs, rel=0.1)


@pytest.fixture
def stand_in(monkeypatch, stand_in_device):
    monkeypatch.setattr("whet.rl.learner.make.choose_device", lambda *_: "meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # there is none for meta
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    with stand_in_device():
        yield


def test_the_stand_in_finds_a_mix_of_devices(stand_in):
    with pytest.raises(AssertionError, match="mixes devices"):
        torch.ones(3) + torch.ones(3, device="meta")
    with pytest.raises(AssertionError, match="mixes devices"):
        torch.ones(3, device="meta")[torch.tensor([0, 1])]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("long", [False, True], ids=["short", "piece by piece"])
def test_every_tensor_of_a_step_is_made_on_the_device_of_the_model(part, long, stand_in, make, batch, monkeypatch):
    if long:
        monkeypatch.setattr(attention, "EAGER_KEYS", 4)
    options, loss = PARTS[part]
    learner = make(optimizer=OptimizerConfig(type="sgd"), **options)  # torch's fused AdamW knows no meta tensors
    assert {p.device.type for p in learner.weights.model.parameters()} == {"meta"}
    step(learner, batch, loss)
    assert learner.token_logprobs(batch).shape == batch.ids.shape


def test_every_tensor_of_a_mixture_of_experts_is_made_on_the_device_of_the_model(
    stand_in, tmp_path, sequences, monkeypatch
):
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    options = {"optimizer": OptimizerConfig(type="sgd"), "lora": None, "max_steps": 1, "seed": 0}
    with _disable_current_modes():
        AutoModelForCausalLM.from_config(Qwen3MoeConfig(**sizes, **heads, **experts)).save_pretrained(tmp_path)
    # torch's grouped product of meta tensors takes bfloat16 alone
    monkeypatch.setattr(F, "grouped_mm", lambda x, stack, offs: x @ stack[0] + 0 * offs[-1])
    learner = make_learner(tmp_path, computation=LearnerConfig(), publish_directory=tmp_path, **options)
    step(learner, pack(sequences, np.ones(len(sequences))), LossConfig())
