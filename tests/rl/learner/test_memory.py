"""What a step holds in memory: never all logits at once, and with activation checkpointing far less of each layer."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Qwen3Config

from whet.inference.weights import frozen_base
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner import make as learner_made
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.forward import attention, decoder, logprobs
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import LossConfig

CROSS_ENTROPY = LossConfig(loss="cross_entropy")


class Allocations(TorchDispatchMode):
    """Sizes in bytes of what operations return inside a `with` block: the same on every machine, unlike a process's
    resident memory."""

    def __init__(self):
        super().__init__()
        self._storages, self._held, self._sum, self._peak = {}, {}, 0, 0
        self.shapes = set()

    @property
    def largest(self):
        return max(self._storages.values())

    @property
    def peak(self):
        """The most that was held at once."""
        return self._peak

    @property
    def alive(self):
        """Of what is still held by somebody, such as the graph that a backward pass needs."""
        return sum(size for storage, size in self._storages.items() if not storage.expired())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if hasattr(value, "untyped_storage"):
                storage = value.untyped_storage()
                self._note(StorageWeakRef(storage), storage.nbytes())
                self.shapes.add(tuple(value.shape))
        return result

    def _note(self, reference, size):
        self._storages[reference] = size
        if reference not in self._held:
            self._held[reference] = size
            self._sum += size
        if self._sum > self._peak:  # maybe only since some of it is gone
            self._held = {one: held for one, held in self._held.items() if not one.expired()}
            self._sum = sum(self._held.values())
            self._peak = max(self._peak, self._sum)


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


def test_in_bfloat16_the_input_of_a_layer_is_kept_in_half_the_bytes_and_gradients_are_as_exact(
    make, make_rollouts, monkeypatch
):
    batch = pack(make_rollouts(groups=((1, 200),) * 4))
    exact = make()
    exact.forward_backward(batch, CROSS_ENTROPY)
    found, held, kept = {}, {}, []
    ways = {"all is kept": {}, "half": {"activation_checkpointing": True}, "whole": {"activation_checkpointing": True}}
    for way, options in ways.items():
        learner = make(dtype="bfloat16", **options)
        if way == "whole":
            monkeypatch.setattr(decoder, "saved_tensors_hooks", lambda *_: nullcontext())
        with pytest.MonkeyPatch.context() as patch, Allocations() as allocations:
            backward = torch.autograd.backward
            patch.setattr(torch.autograd, "backward", lambda x: (kept.append(allocations.alive), backward(x)))  # noqa: B023
            learner.forward_backward(batch, CROSS_ENTROPY)
        found[way], held[way] = gradients(learner), kept[-1]
    layers, tokens, hidden = 2, 4 * 200, 32
    assert held["whole"] - held["half"] >= 2 * layers * tokens * hidden * 0.95
    for name, gradient in gradients(exact).items():
        half, usual = ((found[way][name] - gradient).norm() for way in ("half", "all is kept"))
        assert half <= 1.2 * usual, name


def test_activation_checkpointing_holds_less_between_forward_and_backward(make, make_rollouts, monkeypatch):
    batch = pack(make_rollouts(groups=((1, 200),) * 4))
    held = []
    for checkpointing in (False, True):
        learner = make(activation_checkpointing=checkpointing)
        with Allocations() as allocations:
            monkeypatch.setattr(torch.autograd, "backward", lambda total: held.append(allocations.alive))
            learner.forward_backward(batch, CROSS_ENTROPY)
    assert held[1] < held[0] / 3


def long_sequences(lengths, prompt, vocabulary=61):
    """Answers of these lengths to one prompt of `prompt` tokens."""
    random = np.random.default_rng(3)
    begins = random.integers(0, vocabulary, prompt)
    found = []
    for number, length in enumerate(lengths):
        ids = np.concatenate([begins, random.integers(0, vocabulary, length)]).astype(np.int32)
        trained = np.arange(len(ids)) >= prompt
        found.append(
            TokenSequence(
                ids=ids,
                trained=trained,
                logprobs=np.where(trained, -2.0, 0).astype(np.float32),
                versions=np.where(trained, 0, -1).astype(np.int32),
                temperature=1.0,
                rollout=f"answer {number}",
            )
        )
    return pack(found, random.normal(size=len(found)))


@pytest.mark.parametrize(("prompt", "lora"), [(100, LoraConfig(rank=2)), (7_408, None)], ids=["lora", "all weights"])
def test_no_tensor_of_a_long_step_is_as_large_as_a_mask_of_its_tokens(prompt, lora, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "DENSE_PLACES", 1 << 20)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 1 << 20)
    torch.manual_seed(0)
    shape = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1 << 15}
    AutoModelForCausalLM.from_config(Qwen3Config(**shape, **heads)).save_pretrained(tmp_path)
    options = {"optimizer": OptimizerConfig(), "lora": lora, "max_steps": 1, "seed": 0, "publish_directory": tmp_path}
    learner = make_learner(tmp_path, computation=LearnerConfig(device="cpu", micro_batch_tokens=1 << 16), **options)
    tokens = 8_192
    lengths = [tokens - prompt] * (1 if prompt == 100 else 4)
    with Allocations() as allocations:
        output = learner.forward_backward(long_sequences(lengths, prompt), LossConfig())
        learner.optim_step(OptimParams(learning_rate=1e-4, denominator=output.tokens))
    assert not [shape for shape in allocations.shapes if sum(size >= tokens // 2 for size in shape) > 1]
    assert allocations.largest <= 4 * attention.DENSE_PLACES < 4 * tokens * tokens / 8


@pytest.mark.parametrize(("lengths", "prompt"), [([1300], 50), ([90, 40, 85, 64], 1200), ([700, 690, 900], 700)])
def test_attention_piece_by_piece_has_the_gradients_of_a_dense_mask(lengths, prompt, device, make, monkeypatch):
    batch, found = long_sequences(lengths, prompt), {}
    for way, places in (("dense", 1 << 40), ("pieces", 0)):
        monkeypatch.setattr(attention, "DENSE_PLACES", places)
        monkeypatch.setattr(attention, "SCORES_AT_ONCE", 1 << 16)
        monkeypatch.setattr(attention, "CUDA_SCORES_AT_ONCE", 1 << 16)
        learner = make(device=device, micro_batch_tokens=1 << 13)
        output = learner.forward_backward(batch, LossConfig())
        found[way] = output.loss, output.values.logprobs_T, gradients(learner)
    (loss, logprobs_T, dense), (our_loss, our_logprobs_T, ours) = found["dense"], found["pieces"]
    assert our_loss == pytest.approx(loss, rel=1e-5)
    assert abs(our_logprobs_T - logprobs_T).max() <= 1e-4
    for name, gradient in dense.items():
        assert (ours[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_in_bfloat16_attention_piece_by_piece_is_as_exact_as_a_dense_mask(device, make, monkeypatch):
    batch, found = long_sequences([700, 690, 900], 700), {}
    ways = {"exact": ("float32", 1 << 40), "dense": ("bfloat16", 1 << 40), "pieces": ("bfloat16", 0)}
    for way, (dtype, places) in ways.items():
        monkeypatch.setattr(attention, "DENSE_PLACES", places)
        learner = make(device=device, dtype=dtype, micro_batch_tokens=1 << 13)
        learner.forward_backward(batch, LossConfig())
        found[way] = gradients(learner)
    for name, gradient in found["exact"].items():
        dense, pieces = ((found[way][name] - gradient).norm() for way in ("dense", "pieces"))
        assert pieces <= 1.2 * dense, name


def test_a_query_of_a_long_run_sees_no_token_after_it(make, monkeypatch):
    monkeypatch.setattr(attention, "DENSE_PLACES", 0)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 1 << 16)
    batch = long_sequences([1300], 50)
    changed = dataclasses.replace(batch, ids=batch.ids.copy())
    changed.ids[1200:] = (changed.ids[1200:] + 7) % 61
    before, after = (make().token_logprobs(each) for each in (batch, changed))
    assert (before[50:1200] == after[50:1200]).all()
    assert (before[1200:] != after[1200:]).any()


@pytest.mark.parametrize(("copied", "lora", "small"), [(None, True, False), (0, True, True), (0, False, False)])
def test_memory_goes_back_at_once_for_an_adapter_on_all_but_a_tiny_base(make, monkeypatch, copied, lora, small):
    said = []
    monkeypatch.setattr(learner_made, "_set_allocator", lambda *, small: said.append(small))
    if copied is not None:
        monkeypatch.setattr(frozen_base, "COPIED", copied)
    make(lora=LoraConfig(rank=2) if lora else None)
    assert said == [small]
