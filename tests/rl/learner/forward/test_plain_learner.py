"""Families that whet's own forward does not know: the learner's probabilities and gradients are transformers' own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inference.plain import small_models
from tests.rl.learner.conftest import rollouts
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from whet.errors import ConfigError
from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import SampleRequest, SamplingParams
from whet.inference.token_sets import TokenSets
from whet.rl.data.batch import PackedBatch, pack
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.forward.forward_pass import padded_micro_batches
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.learner.torch_learner import TorchLearner
from whet.rl.sections.algorithm import LossConfig

FAMILIES = ["gpt2", "bloom", "gemma2", "granite", "mixtral"]
ENTROPY = LossConfig(loss="grpo", entropy_coef=0.1)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    return small_models.built_once(tmp_path_factory)


@pytest.fixture
def make(others: Callable[[str], tuple[Path, Any]], tmp_path: Path) -> Callable[..., TorchLearner]:
    def make(kind: str, lora: LoraConfig | None = None, **changes: Any) -> TorchLearner:
        return make_learner(
            others(kind)[0],
            optimizer=OptimizerConfig(),
            lora=lora,
            max_steps=10,
            seed=0,
            publish_directory=tmp_path / "published",
            computation=LearnerConfig.model_validate({"device": "cpu", **changes}),
            threads=1,
        )

    return make


def batch_of(temperature: float = 1.0) -> PackedBatch:
    return pack(rollouts(temperature=temperature), [1.0, -1.0, 0.5, 1.0, -2.0, 0.3])


def expected_logprobs(model: Any, batch: PackedBatch, kept: TokenSets | None = None) -> tuple[Any, Any]:
    """log p and entropy of every trained token, from one plain forward pass a sequence."""
    logprobs, entropies = [], []
    for start, stop in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        ids = torch.from_numpy(batch.ids[start:stop]).long()
        logits = model(ids[None]).logits[0, :-1].float() / torch.from_numpy(batch.temperatures[start + 1 : stop, None])
        if kept is not None:
            for row, token in enumerate(range(start + 1, stop)):
                if len(own := kept.take(np.array([token])).ids):
                    cut = torch.ones(logits.shape[1], dtype=torch.bool)
                    cut[torch.from_numpy(own).long()] = False
                    logits[row, cut] = -1e30
        logs = logits.log_softmax(-1)
        trained = torch.from_numpy(batch.trained[start + 1 : stop])
        logprobs.append(logs.gather(1, ids[1:, None])[:, 0][trained])
        entropies.append(-(logs.exp() * logs).sum(-1)[trained])
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(learner: TorchLearner) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in learner.weights.parameters() if p.grad is not None}


def relative(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(((left[n] - right[n]).norm() / (right[n].norm() + 1e-6)).item() for n in left)


@pytest.mark.parametrize("kind", FAMILIES)
def test_logprobs_and_gradients_are_those_of_transformers(
    make: Callable[..., TorchLearner], others: Callable[[str], tuple[Path, Any]], kind: str
) -> None:
    learner, batch = make(kind, micro_batch_tokens=40), batch_of(temperature=0.7)
    assert len(padded_micro_batches(batch, 40, 512)) > 2
    model = AutoModelForCausalLM.from_pretrained(others(kind)[0])
    logprobs, entropies = expected_logprobs(model, batch)
    found = learner.token_logprobs(batch)[batch.trained]
    assert np.abs(found - logprobs.detach().numpy()).max() < 1e-5
    output = learner.forward_backward(batch, LossConfig(loss="cross_entropy", entropy_coef=0.1))
    assert output.sums["entropy"] == pytest.approx(entropies.sum().item(), rel=1e-5)
    weights = torch.from_numpy(batch.advantages[batch.trained])
    (-(weights * logprobs).sum() - 0.1 * entropies.sum()).backward()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert relative(gradients(learner), named) < 1e-5


def test_gradients_do_not_depend_on_micro_batches_or_on_what_is_computed_again(
    make: Callable[..., TorchLearner],
) -> None:
    expected = None
    for changes in ({}, {"micro_batch_tokens": 1}, {"activation_checkpointing": True}):
        learner = make("gpt2", **changes)
        learner.forward_backward(batch_of(), ENTROPY)
        found = gradients(learner)
        expected = expected or found
        assert relative(found, expected) < 1e-5


def test_probabilities_are_compared_within_what_the_sampler_s_cuts_left(
    make: Callable[..., TorchLearner], others: Callable[[str], tuple[Path, Any]]
) -> None:
    batch = batch_of()
    rng = np.random.default_rng(0)
    sets = [
        np.unique([token, *rng.integers(0, 512, 5)]).astype(np.int32)
        if trained and token % 3
        else np.zeros(0, np.int32)
        for token, trained in zip(batch.ids, batch.trained, strict=True)
    ]
    kept = TokenSets.of(sets)
    with torch.no_grad():
        expected, _ = expected_logprobs(others("gpt2")[1], batch, kept)
    learner = make("gpt2")
    found = learner.token_logprobs(replace(batch, kept=kept))[batch.trained]
    assert np.abs(found - expected.numpy()).max() < 1e-5
    learner.forward_backward(replace(batch, kept=kept), ENTROPY)
    assert all(gradient.isfinite().all() for gradient in gradients(learner).values())


def test_a_family_s_own_dropout_stays_off_and_the_adapter_s_is_in_gradients_alone(
    make: Callable[..., TorchLearner],
) -> None:
    learner, batch = make("gpt2"), batch_of()  # GPT-2 drops a tenth of everything in training
    before = learner.token_logprobs(batch)
    values = learner.forward_backward(batch, LossConfig(loss="grpo")).values
    assert values is not None
    assert np.array_equal(values.logprobs_T[batch.trained], before[batch.trained])
    dropping = make("gpt2", LoraConfig.model_validate({"rank": 2, "dropout": 0.5}))
    dropping.forward_backward(batch, LossConfig(loss="grpo"))
    dropping.optim_step(OptimParams(learning_rate=0.1, denominator=1))
    first, second = (dropping.forward_backward(batch, LossConfig(loss="grpo")) for _ in range(2))
    assert first.values is not None
    assert second.values is not None
    assert np.array_equal(first.values.logprobs_T, second.values.logprobs_T)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "bloom"])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)], ids=["all weights", "adapter"])
def test_an_engine_samples_from_what_was_learned_and_exports_load_elsewhere(
    make: Callable[..., TorchLearner],
    others: Callable[[str], tuple[Path, Any]],
    tmp_path: Path,
    kind: str,
    lora: LoraConfig | None,
) -> None:
    learner, batch = make(kind, lora), batch_of()
    for _ in range(2):
        learner.forward_backward(batch, ENTROPY)
        learner.optim_step(OptimParams(learning_rate=0.01, denominator=batch.trained_tokens))
    engine = EmbeddedEngine.from_directory(others(kind)[0])
    asyncio.run(engine.load_weights(learner.publish()))
    request = SampleRequest([5, 6, 7, 8], SamplingParams(max_tokens=8, seed=3))
    sample = asyncio.run(engine.sample(request))
    learner.export_merged(tmp_path / "whole")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    with torch.no_grad():
        logits = whole(torch.tensor([[5, 6, 7, 8, *sample.ids]])).logits[0, 3:-1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(sample.ids)[:, None])[:, 0]
    assert (torch.tensor(sample.logprobs) - expected).abs().max().item() < 5e-5
    assert {path.name for path in (tmp_path / "whole").iterdir()} >= {"config.json", "tokenizer.json"}
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    again = make(kind, lora)
    again.load(tmp_path / "saved")
    assert np.array_equal(again.token_logprobs(batch), learner.token_logprobs(batch))


def test_targets_of_an_adapter_are_those_the_family_has(make: Callable[..., TorchLearner]) -> None:
    adapted = {
        name.split(".lora_")[0].split(".")[-1] for name, _ in make("gpt2", LoraConfig(rank=2)).weights.parameters()
    }
    assert adapted == {"c_attn", "c_proj", "c_fc"}
    with pytest.raises(ConfigError, match=r"no layer named query\. It has c_attn, c_fc, c_proj"):
        make("gpt2", LoraConfig(rank=2, target_modules=("query",)))


def test_muon_moves_the_matrices_of_numbered_layers(make: Callable[..., TorchLearner]) -> None:
    hidden = make("gpt2").weights.hidden_parameters()
    assert "transformer.h.1.mlp.c_fc.weight" in hidden
    assert not {"transformer.wte.weight", "transformer.ln_f.weight"} & hidden


def test_a_reference_of_another_family_is_computed_by_the_same_forward_pass(
    others: Callable[[str], tuple[Path, Any]], tmp_path: Path
) -> None:
    """The policy is of a family that whet's own forward knows; its reference is not."""
    config = LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    config.num_attention_heads = config.num_key_value_heads = 4
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    learner = make_learner(
        tmp_path / "llama",
        optimizer=OptimizerConfig(),
        lora=None,
        max_steps=10,
        seed=0,
        publish_directory=tmp_path / "published",
        computation=LearnerConfig(device="cpu"),
        threads=1,
        reference=str(others("granite")[0]),
    )
    batch = batch_of()
    output = learner.forward_backward(batch, LossConfig(loss="grpo", kl_coef=0.1, kl_estimator="k1"))
    with torch.no_grad():
        policy, _ = expected_logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "llama"), batch)
        reference, _ = expected_logprobs(others("granite")[1], batch)
    assert output.sums["kl_reference"] == pytest.approx((policy - reference).sum().item(), rel=1e-4)
