"""What a step holds in memory: never all logits at once, and with activation checkpointing far less of each layer."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whet.rl.algorithm_config import LossConfig
from whet.rl.data.batch import pack
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.forward import logprobs

CROSS_ENTROPY = LossConfig(loss="cross_entropy")


class Allocations(TorchDispatchMode):
    """Sizes in bytes of what operations return inside a `with` block: the same on every machine, unlike a process's
    resident memory."""

    def __init__(self):
        super().__init__()
        self._storages = {}

    @property
    def largest(self):
        return max(self._storages.values())

    @property
    def alive(self):
        """Of what is still held by somebody, such as the graph that a backward pass needs."""
        return sum(size for storage, size in self._storages.items() if not storage.expired())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if hasattr(value, "untyped_storage"):
                storage = value.untyped_storage()
                self._storages[StorageWeakRef(storage)] = storage.nbytes()
        return result


def gradients(learner):
    return {name: p.grad.clone() for name, p in learner.weights.parameters()}


def test_no_tensor_of_a_forward_or_backward_pass_is_larger_than_a_chunk_of_logits(monkeypatch):
    tokens, vocabulary, chunk = 256, 512, 1 << 14
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    hidden = torch.randn(tokens, 4, requires_grad=True)
    weight = torch.randn(vocabulary, 4, requires_grad=True)
    with Allocations() as allocations:
        found, entropies = logprobs.token_logprobs(
            hidden, weight, torch.arange(tokens), torch.arange(tokens), torch.ones(tokens)
        )
        (found - entropies).sum().backward()
    assert allocations.largest == 4 * chunk < 4 * tokens * vocabulary / 7


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, dropout=0.3)], ids=["all weights", "lora with dropout"])
def test_activation_checkpointing_changes_no_bit_of_a_gradient(make, batch, lora):
    plain, again = make(lora=lora), make(lora=lora, activation_checkpointing=True)
    for learner in (plain, again):
        torch.manual_seed(3)
        learner.forward_backward(batch, CROSS_ENTROPY)
    assert all(torch.equal(g, gradients(plain)[name]) for name, g in gradients(again).items())


def test_activation_checkpointing_holds_less_between_forward_and_backward(make, make_rollouts, monkeypatch):
    batch = pack(make_rollouts(groups=((1, 200),) * 4))
    held = []
    for checkpointing in (False, True):
        learner = make(activation_checkpointing=checkpointing)
        with Allocations() as allocations:
            monkeypatch.setattr(torch.autograd, "backward", lambda total: held.append(allocations.alive))
            learner.forward_backward(batch, CROSS_ENTROPY)
    assert held[1] < held[0] / 3
