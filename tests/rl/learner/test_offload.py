"""A learner that leaves its device: nothing of it stays there, and it continues."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import torch

from whet.inference.weights import host_memory
from whet.inference.weights.host_memory import HostCopies, copied_ahead, in_pieces, to_device
from whet.rl.learner.config import LoraConfig, OptimizerConfig
from whet.rl.learner.offload import move_learner
from whet.rl.learner.protocol import OptimParams
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
        move_learner(moved.weights, moved.optimizer, moved._reference, lambda key, tensor, fixed: tensor.clone())
        assert not before.keys() & {tensor.data_ptr() for tensor in tensors_of(moved)}
        assert held

    # products round by how tensors are aligned, and those of a checkpoint's file are not as torch's own are
    assert steps(moved, batch, between=move) == pytest.approx(steps(still, batch, between=lambda: None), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_change_is_copied_to_the_host_once(make, batch, kind) -> None:
    """By the class that a GPU's learner moves with, here from the CPU to memory of its own."""
    moved, still = (make(reference="initial", **KINDS[kind]) for _ in range(2))
    hosts, copied = HostCopies(torch.device("cpu")), list[set[Hashable]]()

    def leave(key, tensor, *, fixed):
        assert not fixed or not tensor.requires_grad
        if not fixed or key not in hosts._hosts:
            copied[-1].add(key)
        host = hosts.leave(key, tensor, fixed=fixed)
        assert torch.equal(host, tensor)
        assert host.data_ptr() != tensor.data_ptr()
        return host

    def move() -> None:
        copied.append(set())
        move_learner(moved.weights, moved.optimizer, moved._reference, leave)
        held = {tensor.data_ptr() for tensor in hosts._hosts.values()}
        move_learner(moved.weights, moved.optimizer, moved._reference, hosts.enter)
        assert not held & {tensor.data_ptr() for tensor in tensors_of(moved)}
        hosts.finish()

    assert steps(moved, batch, between=move) == pytest.approx(steps(still, batch, between=lambda: None), rel=1e-5)
    frozen = sum(not parameter.requires_grad for parameter in moved.weights.model.parameters())
    if moved._reference.shared:
        assert len(copied[0]) - len(copied[1]) == frozen > 0
    else:
        with moved._reference.lend() as reference:
            assert len(copied[0]) - len(copied[1]) == len(list(reference.parameters()))


def test_the_next_tensor_is_copied_while_one_is_used() -> None:
    done = list[str]()

    def begin(tensor):
        done.append(f"copy {int(tensor)}")
        return tensor, (None if int(tensor) == 3 else lambda: done.append(f"wait {int(tensor)}"))

    for key, tensor in copied_ahead(((str(n), torch.tensor(n)) for n in range(5)), begin):
        assert key == str(int(tensor))
        done.append(f"use {key}")
    order = ["copy 0", "copy 1", "wait 0", "use 0", "copy 2", "wait 1", "use 1"]
    order += ["copy 3", "wait 2", "use 2", "use 3", "copy 4", "wait 4", "use 4"]  # 3 is in host memory already
    assert done == order


@pytest.mark.parametrize("size", [1, 10, 11, 20, 35])
def test_bytes_go_to_a_device_through_two_pieces_none_of_which_is_reused_too_early(size) -> None:
    source, done, copies = torch.arange(size, dtype=torch.uint8), list[str](), iter(range(100))

    def given():
        number = next(copies)
        done.append(f"copy {number}")
        return lambda: done.append(f"wait {number}")

    pieces = [torch.empty(10, dtype=torch.uint8) for _ in range(2)]
    assert torch.equal(in_pieces(source, torch.empty_like(source), pieces, given), source)
    order = ["copy 0", "copy 1", "wait 0", "copy 2", "wait 1", "copy 3"]
    assert done == order[: order.index(f"copy {(size - 1) // 10}") + 1]


@pytest.mark.gpu
def test_copies_of_a_gpu_are_pinned_and_whole(monkeypatch) -> None:
    tensors = [torch.randn(100, number + 1, device="cuda") for number in range(5)]
    for number, (host, tensor) in enumerate(zip(dict(copied_ahead(enumerate(tensors))).values(), tensors, strict=True)):
        assert host.is_pinned(), number
        assert torch.equal(host, tensor.cpu()), number
    monkeypatch.setattr(host_memory, "PIECE", 1000)
    source = torch.randint(0, 256, (12_345,), dtype=torch.uint8)
    assert torch.equal(to_device(source, torch.device("cuda")).cpu(), source)


def test_tensors_in_host_memory_are_read_when_their_turn_comes() -> None:
    read = list[int]()
    tensors = ((n, torch.tensor(n)) for n in range(3) if read.append(n) is None)
    for n, tensor in copied_ahead(tensors):
        assert (read, int(tensor)) == ([*range(n + 1)], n)


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
