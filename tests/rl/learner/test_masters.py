"""Weights that the forward pass reads in bfloat16, and their float32 masters."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from whet.inference.architecture import read_architecture
from whet.inference.weights.model_weights import pack as pack_weights
from whet.inference.weights.packed_file import map_packed
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.config import (
    CUDA_MICRO_BATCH_TOKENS,
    MICRO_BATCH_TOKENS,
    LearnerConfig,
    LoraConfig,
    OptimizerConfig,
)
from whet.rl.learner.optim import Masters, Optimizer
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import LossConfig

CROSS_ENTROPY = LossConfig(loss="cross_entropy")
HALF = {"dtype": "bfloat16", "weights_dtype": "bfloat16"}
OPTIMIZERS = {name: OptimizerConfig(type=name) for name in ("adamw", "muon", "sgd")}


def step(learner, batch, learning_rate=1e-3, loss=CROSS_ENTROPY):
    output = learner.forward_backward(batch, loss)
    learner.optim_step(OptimParams(learning_rate=learning_rate, denominator=output.tokens))
    return output.loss / output.tokens


def computed(learner):
    """Copies of what the forward pass reads."""
    return {name: p.detach().clone() for name, p in learner.weights.model.named_parameters()}


def trained(learner):
    return {name: p.detach().clone() for name, p in learner.weights.parameters()}


def make_representable(learner):
    """Weights that bfloat16 holds without rounding, so that how they are held is all that differs."""
    with torch.no_grad():
        for _, parameter in learner.weights.parameters():
            parameter.copy_(parameter.bfloat16())
    learner.weights.updated()
    return learner


def test_matrices_are_bfloat16_and_what_is_trained_is_float32(device, make):
    learner = make(device=device, **HALF)
    assert {p.dtype for p in computed(learner).values() if p.ndim > 1} == {torch.bfloat16}
    assert {p.dtype for p in computed(learner).values() if p.ndim == 1} == {torch.float32}
    assert {p.dtype for p in trained(learner).values()} == {torch.float32}
    assert trained(learner).keys() == computed(learner).keys()
    assert learner.trained_parameters == learner.parameters


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_matrices_are_those_of_products_in_bfloat16_of_float32_weights(device, make, batch, checkpointing):
    options = {"device": device, "activation_checkpointing": checkpointing, "micro_batch_tokens": 20}
    casting = make_representable(make(dtype="bfloat16", weights_dtype="float32", **options))
    held = make_representable(make(**HALF, **options))
    outputs = [learner.forward_backward(batch, CROSS_ENTROPY) for learner in (casting, held)]
    exactly = 0.0 if device == "cpu" else 0.02  # a GPU need not add up in the same order twice
    assert outputs[0].loss == pytest.approx(outputs[1].loss, rel=exactly)
    ours, theirs = ({n: p.grad for n, p in learner.weights.parameters()} for learner in (held, casting))
    for name, gradient in theirs.items():
        assert ours[name].dtype == torch.float32
        rounded = 2**-8 if "embed_tokens" in name else exactly  # its sum over tokens, for each micro-batch
        assert (ours[name] - gradient).norm() <= rounded * gradient.norm(), name


def test_gradients_of_a_token_that_comes_often_add_up_in_float32(make):
    ids = np.full(2000, 7, np.int32)
    ids[::50] = 9
    trained = np.arange(2000) > 0
    zeros = np.zeros(2000, np.float32)
    versions = np.where(trained, 0, -1).astype(np.int32)
    sequence = TokenSequence(ids=ids, trained=trained, logprobs=zeros, versions=versions, temperature=1.0, rollout="r")
    found = []
    for half in ({"dtype": "bfloat16", "weights_dtype": "float32"}, HALF):
        learner = make_representable(make(micro_batch_tokens=4096, **half))
        learner.forward_backward(pack([sequence], [1.0]), CROSS_ENTROPY)
        (gradient,) = (p.grad for name, p in learner.weights.parameters() if "embed_tokens" in name)
        found.append(gradient[7])
    exact, ours = found
    assert (ours - exact).norm() <= 2**-8 * exact.norm()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_loss_falls_as_with_float32(device, make, batch, kind):
    rate = {"sgd": 0.05}.get(kind, 2e-3)
    curves = [
        [step(make_learner, batch, rate) for _ in range(25)]
        for make_learner in (
            make(OPTIMIZERS[kind], device=device, dtype="float32", weights_dtype="float32"),
            make(OPTIMIZERS[kind], device=device, **HALF),
        )
    ]
    exact, half = map(np.array, curves)
    assert exact[-1] < 0.9 * exact[0]
    assert np.abs(half - exact).max() < 0.05 * (exact[0] - exact[-1]) + 0.02


def test_updates_that_bfloat16_would_lose_add_up_in_the_masters():
    losing, kept = nn.Parameter(torch.ones(2, 2).bfloat16()), nn.Parameter(torch.ones(2, 2))
    masters = Masters([("w", kept)], torch.bfloat16)
    optimizers = [
        Optimizer(OptimizerConfig(type="sgd", momentum=0.0), named, hidden=set())
        for named in ([("w", losing)], masters.parameters)
    ]
    for _ in range(4100):
        for parameter, optimizer in zip((losing, kept), optimizers, strict=True):
            parameter.sum().backward()
            optimizer.step(1e-6, 1.0)
            optimizer.clear_gradients()
        masters.round()
    ((_, master),) = masters.parameters
    assert losing[0, 0] == 1.0
    assert master[0, 0].item() == pytest.approx(1 - 4100e-6, abs=1e-4)
    assert kept[0, 0].item() == 1 - 2**-8  # the next number below 1 that bfloat16 has


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_run_with_masters_is_resumed_bit_for_bit(device, make, batch, kind, tmp_path):
    first = make(OPTIMIZERS[kind], device=device, **HALF)
    for _ in range(2):
        step(first, batch)
    assert any((p != p.bfloat16()).any() for p in trained(first).values())
    first.save(tmp_path)
    assert {t.dtype for t in load_file(tmp_path / "weights.safetensors").values()} == {torch.float32}
    second = make(OPTIMIZERS[kind], device=device, **HALF)
    second.load(tmp_path)
    for learner in (first, second):
        step(learner, batch)
    for read in (trained, computed):
        one, other = read(first), read(second)
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_checkpoint_with_masters_continues_in_float32_and_back(make, batch, tmp_path):
    half, exact = make(**HALF), make()
    step(half, batch)
    half.save(tmp_path)
    exact.load(tmp_path)
    one, other = trained(half), trained(exact)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("engine", ["float32", "bfloat16"])
def test_engines_are_given_the_weights_that_the_forward_pass_reads(make, batch, model_dir, engine):
    learner = make(publish_dtype=engine, **HALF)
    step(learner, batch)
    options = {"dtype": getattr(torch, engine), "device": torch.device("cpu")}
    read, exact = (pack_weights(of(learner), read_architecture(model_dir), **options) for of in (computed, trained))
    given = map_packed(learner.publish().path, like=read).tensors()
    assert all(torch.equal(tensor, given[name]) for name, tensor in read.tensors().items())
    assert any(not torch.equal(tensor, given[name]) for name, tensor in exact.tensors().items())
    rounded = computed(learner)["model.layers.0.self_attn.o_proj.weight"]  # nothing is folded into it
    assert torch.equal(given["layers.0.output"].bfloat16(), rounded.t())


def test_an_export_has_the_masters_or_what_the_forward_pass_reads_by_its_dtype(make, batch, tmp_path):
    learner = make(**HALF)
    step(learner, batch)
    for dtype, expected in (("float32", trained(learner)), ("bfloat16", computed(learner))):
        learner.export(tmp_path / dtype, dtype)
        found = load_file(tmp_path / dtype / "model.safetensors")
        assert {tensor.dtype for tensor in found.values()} == {getattr(torch, dtype)}
        assert all(torch.equal(found[name], tensor.to(found[name].dtype)) for name, tensor in expected.items())


def test_an_adapter_on_a_bfloat16_base_is_trained_and_saved_in_float32(device, make, batch, tmp_path):
    learner = make(device=device, lora=LoraConfig(rank=4, alpha=8.0), dtype="bfloat16", base_dtype="bfloat16")
    before = trained(learner)
    step(learner, batch)
    learner.save(tmp_path)
    saved = load_file(tmp_path / "adapter.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert any((tensor.cpu() != before[name].cpu()).any() for name, tensor in saved.items())


def test_a_reference_is_held_as_the_weights_are(make, batch, model_dir):
    loss = LossConfig(kl_coef=0.1)
    found = []
    for reference in ("initial", str(model_dir)):
        learner = make(reference=reference, **HALF)
        found.append(learner.forward_backward(batch, loss).sums["kl_reference"])
    assert found[0] == found[1] == pytest.approx(0.0, abs=1e-6)


def test_masters_and_gradients_are_on_the_device_of_the_parameters(stand_in_device):
    with stand_in_device():
        parameter = nn.Parameter(torch.ones(4, 4, device="meta"))
        masters = Masters([("w", parameter)], torch.bfloat16)
        ((_, master),) = masters.parameters
        for _ in range(2):
            (parameter * 2).sum().backward()
        optimizer = Optimizer(OptimizerConfig(type="sgd"), masters.parameters, hidden=set())
        optimizer.step(1e-3, 1.0)
        masters.round()
    assert (parameter.dtype, master.dtype, master.grad.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert {parameter.device.type, master.device.type, master.grad.device.type} == {"meta"}
    assert parameter.grad is None


def dtypes(config):
    return config.dtype, config.weights_dtype, config.base_dtype


def test_on_cuda_bfloat16_is_what_auto_means_and_elsewhere_float32(machine):
    exact, half = "float32", "bfloat16"
    assert dtypes(LearnerConfig(device="cpu").settled(adapter=False)) == (exact, exact, exact)
    machine()
    assert dtypes(LearnerConfig().settled(adapter=False)) == (half, half, exact)
    assert LearnerConfig().settled(adapter=False).micro_batch_tokens == CUDA_MICRO_BATCH_TOKENS
    assert LearnerConfig(device="cpu").settled(adapter=False).micro_batch_tokens == MICRO_BATCH_TOKENS
    assert LearnerConfig(micro_batch_tokens=7).settled(adapter=False).micro_batch_tokens == 7
    assert dtypes(LearnerConfig().settled(adapter=True)) == (half, exact, half)
    assert dtypes(LearnerConfig(dtype="float32").settled(adapter=False)) == (exact, exact, exact)
    assert dtypes(LearnerConfig(weights_dtype="float32").settled(adapter=False)) == (half, exact, exact)
    assert dtypes(LearnerConfig(device="cpu", dtype="bfloat16").settled(adapter=False)) == (half, exact, exact)


def test_a_resumed_run_keeps_its_dtypes_on_every_device(machine):
    machine()
    began_on_cpu = LearnerConfig(device="cpu").settled(adapter=False)
    began_on_cuda = LearnerConfig().settled(adapter=False)
    for began in (began_on_cpu, began_on_cuda):
        for device in ("cpu", "cuda"):
            resumed = LearnerConfig(device=device).settled(adapter=False, began=began)
            assert dtypes(resumed) == dtypes(began)
