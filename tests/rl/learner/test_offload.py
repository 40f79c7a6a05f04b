"""A learner that leaves its device: nothing of it stays there, and it continues."""

from __future__ import annotations

import pytest
import torch

from whet.rl.learner.config import LoraConfig, OptimizerConfig
from whet.rl.learner.protocol import OptimParams
from whet.rl.learner.torch_learner import move_learner
from whet.rl.sections.algorithm import LossConfig

KL = LossConfig(loss="cross_entropy", kl_coef=0.5)
KINDS = {
    "adamw": {},
    "masters": {"dtype": "bfloat16", "weights_dtype": "bfloat16"},
    "muon": {"optimizer": OptimizerConfig(type="muon")},
    "lora": {"lora": LoraConfig(rank=4, alpha=8)},
}


def steps(learner, batch, *, between) -> list[float]:
    losses = []
    for _ in range(3):
        output = learner.forward_backward(batch, KL)
        learner.optim_step(OptimParams(learning_rate=0.01, denominator=output.tokens))
        losses.append(output.loss)
        between()
    return losses


def tensors_of(learner) -> list[torch.Tensor]:
    """All that a learner holds between two steps, but for buffers."""
    states = [value for state in learner.optimizer.states() for value in state.values() if torch.is_tensor(value)]
    found = [*learner.weights.model.parameters(), *learner.optimizer.parameters, *states]
    with learner._reference.lend() as reference:
        return [*found, *reference.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_moves_and_training_continues(make, batch, kind) -> None:
    moved, still = (make(reference="initial", **KINDS[kind]) for _ in range(2))

    def move() -> None:
        before = {tensor.data_ptr(): tensor for tensor in tensors_of(moved)}
        held = [tensor.data for tensor in before.values()]  # so that no address is used again
        move_learner(moved.weights, moved.optimizer, moved._reference, torch.clone)
        assert not before.keys() & {tensor.data_ptr() for tensor in tensors_of(moved)}
        assert held

    # products round by how tensors are aligned, and those of a checkpoint's file are not as torch's own are
    assert steps(moved, batch, between=move) == pytest.approx(steps(still, batch, between=lambda: None), rel=1e-5)


def test_restore_deletes_what_was_handed_over(make, tmp_path) -> None:
    learner = make()
    path = learner.publish().path
    assert path.exists()
    learner.offload()
    assert path.exists()
    learner.restore()
    assert not path.exists()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_is_free_while_the_learner_is_in_host_memory(make, batch, kind, tmp_path) -> None:
    moved, still = (make(reference="initial", device="cuda", **KINDS[kind]) for _ in range(2))

    def move() -> None:
        held = torch.cuda.memory_allocated()
        moved.offload()
        assert {tensor.device.type for tensor in tensors_of(moved)} == {"cpu"}
        assert torch.cuda.memory_allocated() < held
        moved.save(tmp_path)
        moved.publish()
        moved.restore()
        assert {tensor.device.type for tensor in tensors_of(moved)} == {"cuda"}

    assert steps(moved, batch, between=move) == pytest.approx(steps(still, batch, between=lambda: None), rel=1e-5)
