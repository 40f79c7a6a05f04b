"""Every family that whet's own forward knows against `transformers`' own, on small random weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inference import family_models
from tests.inference.family_models import EXPERTS, LONGROPE, MODELS, ONE_OF_EACH, SIZES
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from whet.errors import ConfigError, ModelLoadError
from whet.inference.architecture import parse_architecture, read_architecture
from whet.inference.decoding.functions import frequencies
from whet.inference.embedded import EmbeddedEngine
from whet.inference.families import FAMILIES
from whet.inference.limits import EngineLimits
from whet.inference.protocol import SampleRequest, SamplingParams, WeightUpdate
from whet.rl.data.batch import TokenSequence, pack
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.forward import attention
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.memory import parameter_count, trained_count
from whet.rl.sections.algorithm import LossConfig

every_model = pytest.mark.parametrize("kind", MODELS)
every_family = pytest.mark.parametrize("kind", ONE_OF_EACH)
Checkpoint = tuple[Path, Any]
CROSS_ENTROPY = LossConfig(loss="cross_entropy")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """(directory, model) of a kind, each made once."""
    made: dict[str, Checkpoint] = {}

    def get(kind: str) -> Checkpoint:
        if kind not in made:
            torch.set_num_threads(1)
            directory = tmp_path_factory.mktemp("family")
            made[kind] = directory, family_models.write(kind, directory, seed=sorted(MODELS).index(kind))
        return made[kind]

    return get


def sequences(seed: int = 0) -> list[TokenSequence]:
    """Three of a long prompt that two have in common still longer, longer than a window; and two of another prompt."""
    rng = np.random.default_rng(seed)
    first, second, shared = rng.integers(3, 67, 17), rng.integers(3, 67, 4), rng.integers(3, 67, 9)
    answers = [[first, shared, rng.integers(3, 67, 8)], [first, shared, rng.integers(3, 67, 3)]]
    answers += [[first, rng.integers(3, 67, 12)], [second, rng.integers(3, 67, 6)], [second, rng.integers(3, 67, 2)]]
    found = []
    for number, parts in enumerate(answers):
        ids = np.concatenate(parts).astype(np.int32)
        trained = np.arange(len(ids)) >= len(parts[0])
        trained[len(parts[0]) + 2 : len(parts[0]) + 4] = False  # as of a tool's answer
        found.append(
            TokenSequence(
                ids=ids,
                trained=trained,
                logprobs=np.zeros(len(ids), np.float32),
                versions=np.zeros(len(ids), np.int32),
                rollout=str(number),
            )
        )
    return found


def reference(model: Any, of: list[TokenSequence]) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
    """Logprobs of trained tokens, and gradients of the sum of them, one sequence at a time."""
    model.zero_grad()
    logprobs = []
    for sequence in of:
        ids = torch.from_numpy(sequence.ids).long()[None]
        logits = model(ids).logits[0, :-1].float()
        taken = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        trained = torch.from_numpy(sequence.trained[1:])
        (-taken[trained]).sum().backward()
        logprobs.append(np.concatenate([[0], (taken * trained).detach().numpy()]))
    return np.concatenate(logprobs), {name: p.grad.clone() for name, p in model.named_parameters()}


def learner_of(directory: Path, published: Path, lora: LoraConfig | None = None, **computation: Any) -> Any:
    return make_learner(
        directory,
        optimizer=OptimizerConfig(),
        lora=lora,
        max_steps=9,
        seed=0,
        publish_directory=published,
        computation=LearnerConfig(device="cpu", **computation),
        threads=1,
    )


def assert_gradients(learner: Any, expected: dict[str, torch.Tensor]) -> None:
    """Of each parameter within 1e-5 of the largest of its values, or of the mean of all where it is next to none."""
    floor = float(np.mean([gradient.abs().max() for gradient in expected.values()]))
    for name, parameter in learner.weights.parameters():
        apart = (parameter.grad - expected[name]).abs().max() / max(expected[name].abs().max(), 0.1 * floor)
        assert apart < 1e-5, (name, float(apart))


def test_every_family_has_a_model_here() -> None:
    assert {settings["model_type"] for settings in MODELS.values()} == FAMILIES.keys()


@pytest.mark.parametrize(
    ("kind", "eager"),
    [*((kind, True) for kind in MODELS), *((kind, False) for kind in ONE_OF_EACH)],
)
def test_learner_has_the_logprobs_and_gradients_of_transformers(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, eager: bool
) -> None:
    """In one micro-batch with shared prefixes, and in several; also with the attention of long sequences."""
    if not eager:
        monkeypatch.setattr(attention, "EAGER_KEYS", 0)
        monkeypatch.setattr(attention, "DENSE_PLACES", 0)
        monkeypatch.setattr(attention, "SCORES_AT_ONCE", 200)
    directory, model = checkpoint(kind)
    batch = sequences()
    logprobs, gradients = reference(model, batch)
    for budget in (10_000,) if eager else (30,):
        learner = learner_of(directory, tmp_path, micro_batch_tokens=budget)
        assert learner.parameters == parameter_count(read_architecture(directory))
        np.testing.assert_allclose(learner.token_logprobs(pack(batch)), logprobs, atol=1e-5)
        learner.forward_backward(pack(batch), CROSS_ENTROPY)
        assert_gradients(learner, gradients)


def sampled(engine: EmbeddedEngine, prompts: list[list[int]], length: int, adapter: str | None = None) -> list[Any]:
    async def run() -> list[Any]:
        requests = [
            SampleRequest(prompt, SamplingParams(max_tokens=length, seed=i), group_key="one", adapter=adapter)
            for i, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(run())


def logprobs_of(model: Any, prompt: list[int], ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)


def worst(model: Any, prompts: list[list[int]], samples: list[Any]) -> float:
    apart = [
        logprobs_of(model, prompt, sample.ids) - torch.tensor(sample.logprobs)
        for prompt, sample in zip(prompts, samples, strict=True)
    ]
    return float(torch.cat(apart).abs().max())


def prompts(seed: int = 3) -> list[list[int]]:
    """Two that begin alike, longer than a window, one shorter, and one of a single token."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(3, 67, 14).tolist()
    return [[*shared, 5, 6, 7], [*shared, 9], rng.integers(3, 67, 3).tolist(), [4]]


@every_model
def test_cached_decoding_has_the_logprobs_of_transformers(
    checkpoint: Callable[[str], Checkpoint], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows slide while answers grow; prompts share what is in the cache, and are prefilled in pieces."""
    monkeypatch.setattr("whet.inference.decoding.decoder._SCORES_PER_CHUNK", 500)
    directory, model = checkpoint(kind)
    engine = EmbeddedEngine.from_directory(directory, limits=EngineLimits(max_rows=3))
    samples = sampled(engine, prompts(), 21)
    assert worst(model, prompts(), samples) < 1e-4
    assert engine.stats.reused_tokens > 10


@every_family
def test_adapter_merged_exported_and_served_agrees_with_transformers(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path, kind: str
) -> None:
    """A step of LoRA: the learner, the exported model in `transformers`, and both ways of sampling with it."""
    directory, model = checkpoint(kind)
    arch = read_architecture(directory)
    linear = [name.split(".") for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    parts = ("self_attn",) if arch.experts is not None else ("self_attn", "mlp")
    targets = tuple(sorted({name[-1] for name in linear if name[-2:-1] and name[-2] in parts}))
    learner = learner_of(directory, tmp_path / "published", LoraConfig(rank=2, alpha=4, target_modules=targets))
    assert learner.trained_parameters == trained_count(arch, LoraConfig(rank=2, target_modules=targets))
    batch = pack(sequences())
    for _ in range(3):
        learner.forward_backward(batch, CROSS_ENTROPY)
        learner.optim_step(OptimParams(learning_rate=0.05, denominator=1))
    learner.export_merged(tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", attn_implementation="eager").eval()
    expected, _ = reference(merged, sequences())
    before, _ = reference(model, sequences())
    assert np.abs(expected - before).max() > 0.1
    np.testing.assert_allclose(learner.token_logprobs(batch), expected, atol=1e-4)

    engine = EmbeddedEngine.from_directory(directory)
    update = learner.publish()
    asyncio.run(engine.load_weights(update))
    assert worst(merged, prompts(), sampled(engine, prompts(), 6)) < 1e-4
    engine = EmbeddedEngine.from_directory(directory)
    asyncio.run(engine.load_weights(WeightUpdate(version=1, path=update.path, kind="adapter", adapter="a")))
    assert worst(merged, prompts(), sampled(engine, prompts(), 6, adapter="a")) < 1e-4


@every_family
def test_weights_handed_over_and_exported_are_those_that_were_trained(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path, kind: str
) -> None:
    directory, _ = checkpoint(kind)
    learner = learner_of(directory, tmp_path / "published")
    learner.forward_backward(pack(sequences()), CROSS_ENTROPY)
    learner.optim_step(OptimParams(learning_rate=0.01, denominator=1))
    learner.export(tmp_path / "model")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    expected, _ = reference(exported, sequences())
    np.testing.assert_allclose(learner.token_logprobs(pack(sequences())), expected, atol=1e-5)
    engine = EmbeddedEngine.from_directory(directory)
    asyncio.run(engine.load_weights(learner.publish()))
    assert worst(exported, prompts(), sampled(engine, prompts(), 6)) < 1e-4


@every_family
def test_in_bfloat16_engine_and_learner_come_near(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path, kind: str
) -> None:
    directory, model = checkpoint(kind)
    expected, gradients = reference(model, sequences())
    learner = learner_of(directory, tmp_path, dtype="bfloat16")
    apart = np.abs(learner.token_logprobs(pack(sequences())) - expected)[expected != 0]
    assert 0 < np.median(apart) < 0.1
    learner.forward_backward(pack(sequences()), CROSS_ENTROPY)
    along = {
        name: torch.cosine_similarity(p.grad.flatten(), gradients[name].flatten(), 0)
        for name, p in learner.weights.parameters()
    }
    near = 0.9 if "moe" in kind else 0.99  # near a tie, rounding sends a token to another expert
    assert np.median([float(value) for value in along.values()]) > near
    engine = EmbeddedEngine.from_directory(directory, dtype=torch.bfloat16)
    samples = sampled(engine, prompts(), 12)
    found = [
        logprobs_of(model, prompt, one.ids) - torch.tensor(one.logprobs)
        for prompt, one in zip(prompts(), samples, strict=True)
    ]
    assert 0 < float(torch.cat(found).abs().median()) < 0.1


@pytest.mark.parametrize("model_type", FAMILIES)
def test_keys_that_a_config_lacks_mean_what_they_mean_to_transformers(model_type: str) -> None:
    given = {key: value for key, value in SIZES.items() if not key.endswith("_id") and key != "num_key_value_heads"}
    given |= {"model_type": model_type, "num_hidden_layers": 12, "max_position_embeddings": 40_000}
    if model_type == "qwen3_moe":
        given |= EXPERTS
    whole = AutoConfig.for_model(**given).to_dict()
    assert parse_architecture(given, where="given") == parse_architecture(whole, where="whole")


def test_settings_of_checkpoints_of_transformers_4_mean_the_same() -> None:
    old = {**SIZES, "model_type": "gemma3_text", "head_dim": 8, "rope_theta": 5e5, "rope_local_base_freq": 300.0}
    old |= {"sliding_window": 4, "sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    new = CONFIG_MAPPING["gemma3_text"](**{k: v for k, v in old.items() if k != "model_type"}).to_dict()
    assert parse_architecture(old, where="old") == parse_architecture(new, where="new")
    phi = {**SIZES, "model_type": "phi3", "original_max_position_embeddings": 64, "rope_theta": 1e4}
    phi |= {"rope_scaling": {"type": "su", "short_factor": [1.0, 2.0, 3.0, 4.0], "long_factor": [9.0] * 4}}
    arch = parse_architecture(phi, where="phi")
    assert (arch.max_context, arch.ropes[0] and arch.ropes[0].kind) == (64, "longrope")


@every_model
def test_frequencies_are_those_of_transformers_to_the_last_bit(
    checkpoint: Callable[[str], Checkpoint], kind: str
) -> None:
    """At position 100,000 one bit more is an angle of 0.01."""
    directory, model = checkpoint(kind)
    arch, theirs = read_architecture(directory), model.model.rotary_emb
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * arch.num_layers
    for rope, layer_type in dict(zip(arch.ropes, kinds, strict=True)).items():
        if rope is not None:
            at = f"{layer_type}_" if hasattr(theirs, f"{layer_type}_inv_freq") else ""
            assert torch.equal(frequencies(rope), getattr(theirs, f"{at}original_inv_freq")), rope
            assert rope.attention_factor == pytest.approx(getattr(theirs, f"{at}attention_scaling"), rel=1e-12)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe", "phi3", "glm4"])
def test_without_targets_every_linear_layer_but_those_of_experts_gets_an_adapter(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path, kind: str
) -> None:
    directory, _ = checkpoint(kind)
    learner = learner_of(directory, tmp_path, LoraConfig(rank=2))
    assert learner.trained_parameters == trained_count(read_architecture(directory), LoraConfig(rank=2)) > 0
    parts = {name.split(".")[-4] for name, _ in learner.weights.parameters()}
    fused = {"phi3": {"qkv_proj", "gate_up_proj"}, "glm4": {"q_proj", "k_proj", "v_proj", "gate_up_proj"}}
    feed_forward = set() if kind == "qwen3_moe" else {"gate_proj", "up_proj", "down_proj"}
    expected = fused.get(kind, {"q_proj", "k_proj", "v_proj"} | feed_forward) | {"o_proj"}
    assert parts == expected | ({"down_proj"} if kind in fused else set())


def test_adapters_at_experts_are_refused_by_name(checkpoint: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    directory, _ = checkpoint("qwen3_moe")
    lora = LoraConfig(target_modules=("q_proj", "down_proj"))
    with pytest.raises(ConfigError, match=r"down_proj are those of experts too.* takes k_proj, o_proj"):
        learner_of(directory, tmp_path, lora)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gemma2"}, "gemma2"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "llama", "layer_types": ["full_attention"] * 2 + ["sliding_attention"]}, "sliding_attention"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "proportional"),
        (
            {"model_type": "llama", **family_models.rope(rope_type="llama3", partial_rotary_factor=0.5)},
            "4 of 8 dimensions",
        ),
        (
            {"model_type": "phi3", **family_models.rope(**{**LONGROPE, "short_factor": [1.0]})},
            "1 short factors for 4 pairs",
        ),
        ({"model_type": "qwen3_moe", **EXPERTS, "hidden_act": "gelu"}, "gelu"),
        ({"model_type": "llama", "hidden_act": "relu2"}, "relu2"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"model_type": "mixtral"}, "mixtral"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        parse_architecture({**SIZES, **change}, where="config.json")
