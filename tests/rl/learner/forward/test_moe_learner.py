"""A mixture of experts learns as plain transformers would, and can be sent where the sampler sent its tokens."""

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from whet.inference.architecture import read_architecture
from whet.inference.weights.model_weights import pack as pack_weights
from whet.inference.weights.packed_file import map_packed
from whet.rl.data.batch import pack
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import LossConfig

CROSS_ENTROPY = LossConfig(loss="cross_entropy")
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [1],
}


@pytest.fixture(scope="module", params=[True, False], ids=["normalised", "not normalised"])
def moe_dir(request, tmp_path_factory):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**SIZES, norm_topk_prob=request.param))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.rand_like(parameter) + 0.5 if "norm" in name else 0.3 * torch.randn_like(parameter))
    path = tmp_path_factory.mktemp("moe")
    model.save_pretrained(path)
    return path


@pytest.fixture
def make_moe(moe_dir, tmp_path):
    def make(**changes):
        torch.set_num_threads(1)
        computation = LearnerConfig(**{key: changes.pop(key) for key in LearnerConfig.model_fields if key in changes})
        settings = {
            "computation": computation,
            "optimizer": OptimizerConfig(),
            "lora": None,
            "max_steps": 10,
            "seed": 0,
            **changes,
        }
        return make_learner(moe_dir, publish_directory=tmp_path / "published", **settings)

    return make


def gradients(learner):
    return {name: p.grad.clone() for name, p in learner.weights.parameters()}


def step(learner, batch, learning_rate=0.02):
    output = learner.forward_backward(batch, CROSS_ENTROPY)
    learner.optim_step(OptimParams(learning_rate=learning_rate, denominator=output.tokens))
    return output.loss


def with_experts(sequences, seed=0):
    """The same sequences, sent to experts that no router would choose; the last token was never fed."""
    rng = np.random.default_rng(seed)
    found = []
    for sequence in sequences:
        experts = np.stack([[rng.permutation(5)[:2] for _ in range(3)] for _ in range(len(sequence))]).astype(np.int16)
        experts[:, 1] = experts[-1] = -1
        found.append(dataclasses.replace(sequence, experts=experts))
    return found


@pytest.mark.parametrize("budget", [17, 10_000])
def test_logprobs_and_gradients_are_those_of_plain_transformers(moe_dir, make_moe, sequences, budget):
    model = AutoModelForCausalLM.from_pretrained(moe_dir, dtype=torch.float32, attn_implementation="eager")
    logprobs = []
    for sequence in sequences:
        ids = torch.from_numpy(sequence.ids).long()[None]
        taken = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
        (-taken[torch.from_numpy(sequence.trained[1:])]).sum().backward()
        logprobs.append(np.concatenate([[0], (taken.detach().numpy() * sequence.trained[1:])]))
    learner = make_moe(micro_batch_tokens=budget)
    np.testing.assert_allclose(learner.token_logprobs(pack(sequences)), np.concatenate(logprobs), atol=2e-5)
    learner.forward_backward(pack(sequences), CROSS_ENTROPY)
    expected = {name: p.grad for name, p in model.named_parameters()}
    for name, gradient in gradients(learner).items():
        torch.testing.assert_close(gradient, expected[name], atol=5e-4, rtol=5e-4, msg=name)


def test_in_bfloat16_it_comes_near_with_the_samplers_experts_and_without(make_moe, sequences):
    for batch in (pack(sequences), pack(with_experts(sequences))):
        exact, rough = make_moe(), make_moe(dtype="bfloat16")
        apart = np.abs(rough.token_logprobs(batch) - exact.token_logprobs(batch))
        assert 0 < np.median(apart[batch.trained]) < 0.1
        rough.forward_backward(batch, CROSS_ENTROPY)
        assert all(gradient.isfinite().all() for gradient in gradients(rough).values())


def test_what_leaves_has_a_matrix_per_expert_and_loads_in_plain_transformers(moe_dir, make_moe, sequences, tmp_path):
    learner = make_moe()
    step(learner, pack(sequences))
    learner.export(tmp_path / "model")
    exported, original = (load_file(path / "model.safetensors") for path in (tmp_path / "model", moe_dir))
    assert {name: t.shape for name, t in exported.items()} == {name: t.shape for name, t in original.items()}
    packed = pack_weights(exported, read_architecture(moe_dir), dtype=torch.float32, device=torch.device("cpu"))
    published = map_packed(learner.publish().path, like=packed).tensors()
    assert all(torch.equal(tensor, published[name]) for name, tensor in packed.tensors().items())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    trained = dict(learner.weights.parameters())
    assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, target_modules=("q_proj", "o_proj"))])
def test_it_learns_and_resumes_bit_for_bit(make_moe, sequences, tmp_path, lora):
    batch, learner = pack(sequences), make_moe(lora=lora)
    losses = [step(learner, batch) for _ in range(3)]
    assert losses[-1] < losses[0]
    learner.save(tmp_path)
    resumed = make_moe(lora=lora)
    resumed.load(tmp_path)
    assert step(resumed, batch) == step(learner, batch)


def test_replaying_the_routers_own_choice_changes_nothing(make_moe, sequences):
    learner = make_moe()
    unknown = [dataclasses.replace(s, experts=np.full((len(s), 3, 2), -1, np.int16)) for s in sequences]
    np.testing.assert_array_equal(learner.token_logprobs(pack(unknown)), learner.token_logprobs(pack(sequences)))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_replayed_choice_is_taken_whatever_the_weights_and_the_packing(make_moe, sequences, checkpointing):
    """Alone in a micro-batch, or packed: the same sequence goes to the same experts."""
    replayed = with_experts(sequences)
    whole, pieces = (
        make_moe(micro_batch_tokens=10_000),
        make_moe(micro_batch_tokens=1, activation_checkpointing=checkpointing),
    )
    alone = [dataclasses.replace(s, experts=replayed[i].experts) for i, s in enumerate(sequences)]
    for learner in (whole, pieces):
        learner.forward_backward(pack(alone[-1:]), CROSS_ENTROPY)
    for name, gradient in gradients(pieces).items():
        torch.testing.assert_close(gradient, gradients(whole)[name], atol=1e-4, rtol=1e-4, msg=name)
    free = make_moe().token_logprobs(pack(sequences[-1:]))
    assert np.abs(whole.token_logprobs(pack(alone[-1:])) - free).max() > 0.01


def test_only_experts_that_are_replayed_get_a_gradient(make_moe, sequences):
    experts = np.full((len(sequences[0]), 3, 2), -1, np.int16)
    experts[:-1, ::2] = [1, 4]
    learner = make_moe()
    learner.forward_backward(pack([dataclasses.replace(sequences[0], experts=experts)]), CROSS_ENTROPY)
    touched = gradients(learner)["model.layers.0.mlp.experts.down_proj"].flatten(1).abs().sum(1) > 0
    assert touched.tolist() == [False, True, False, False, True]
    assert gradients(learner)["model.layers.0.mlp.gate.weight"].abs().sum() > 0


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, target_modules=("q_proj",))], ids=["all weights", "lora"])
def test_the_first_weights_as_a_reference_take_the_replayed_experts_and_another_model_its_own(
    moe_dir, make_moe, sequences, lora
):
    batch, kl = pack(with_experts(sequences)), LossConfig(loss="cross_entropy", kl_coef=0.1)
    initial, other = make_moe(reference="initial", lora=lora), make_moe(reference=str(moe_dir), lora=lora)
    assert initial.forward_backward(batch, kl).sums["kl_reference"] == 0
    assert other.forward_backward(batch, kl).sums["kl_reference"] > 0.01
