"""`[learner] compile`: the same values and gradients, compiled or as written, and a clear error without a compiler."""

import numpy as np
import pytest
import torch

from whet.errors import ConfigError
from whet.rl.data.batch import pack
from whet.rl.learner.config import LearnerConfig, LoraConfig
from whet.rl.learner.forward import compiled, kernels, logprobs
from whet.rl.learner.forward.forward_pass import ForwardPass
from whet.rl.sections.algorithm import LossConfig

ENTROPY = LossConfig(entropy_coef=0.1)
KINDS = {
    "all weights": {},
    "recomputed": {"activation_checkpointing": True},
    "lora": {"lora": LoraConfig(rank=4)},
    "bfloat16": {"dtype": "bfloat16", "activation_checkpointing": True},
}


@pytest.fixture
def plain(monkeypatch):
    """What would be compiled, as it is written."""
    monkeypatch.setattr(compiled, "_made", lambda function: function)


def step(learner, batch, loss=ENTROPY):
    output = learner.forward_backward(batch, loss)
    return output, {name: p.grad for name, p in learner.weights.parameters()}


def agree(ours, theirs, most):
    assert ours[0].loss == pytest.approx(theirs[0].loss, rel=most, abs=most)
    assert ours[0].sums == pytest.approx(theirs[0].sums, rel=most, abs=most)
    assert np.abs(ours[0].values.logprobs_T - theirs[0].values.logprobs_T).max() <= most
    for name, gradient in theirs[1].items():
        assert (ours[1][name] - gradient).norm() <= most * gradient.norm(), name


@pytest.mark.parametrize("chunk", [1 << 22, 61 * 7], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_kernels(kind, chunk, make, batch, plain, monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    most = 0.05 if "dtype" in KINDS[kind] else 3e-5  # compiled sums come in another order: 1.3e-5 with AVX2
    agree(*(step(make(**KINDS[kind], compile=compile), batch) for compile in (True, False)), most)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_first_dimensions_turn_and_the_rest_is_scaled(interleaved, plain):
    x, angle = torch.randn(5, 3, 10), torch.randn(5, 1, 3)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    options = {"rest": 0.5, "interleaved": interleaved}
    one = compiled.rotate(ours, angle.cos(), angle.sin(), torch.float32, **options)
    other = kernels.rotate(theirs, angle.cos(), angle.sin(), torch.float32, **options)
    torch.testing.assert_close(one, other)
    direction = torch.randn_like(x)
    one.backward(direction)
    other.backward(direction)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_without_a_compiler_the_key_is_refused_with_the_reason(make, monkeypatch):
    def missing(function):
        raise RuntimeError("\nno C++ compiler\nlong explanation")

    monkeypatch.setattr(compiled, "_made", missing)
    with pytest.raises(ConfigError, match=r"compile = true: .* for cpu here \(no C\+\+ compiler\)\. Set it to false"):
        make(compile=True)


def test_a_model_that_transformers_runs_is_refused():
    with pytest.raises(ConfigError, match="compile = true would have no effect"):
        ForwardPass(LearnerConfig(compile=True), torch.device("cpu"), own=False)


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.parts), pytest.param("cuda", marks=pytest.mark.gpu)]
)
@pytest.mark.timeout(600)
def test_compiled_code_serves_micro_batches_of_every_length(device, make, make_rollouts, monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 61 * 7)
    monkeypatch.setattr(logprobs, "CUDA_CHUNK_ELEMENTS", 61 * 7)
    torch._dynamo.utils.counters.clear()
    learner, exact, graphs = make(compile=True, device=device), make(device=device), []
    for groups in (((3, 9), (2, 5)), ((1, 40),), ((4, 17), (2, 30), (1, 8))):
        batch = pack(make_rollouts(groups=groups))
        agree(step(learner, batch), step(exact, batch), 1e-5)
        learner.optimizer.clear_gradients()
        exact.optimizer.clear_gradients()
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[-1] > 3
