"""The learner computes what plain transformers computes, whatever the packing, and resumes bit for bit."""

import contextlib
import dataclasses
import json
import math
import os
import resource

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from whet.errors import ModelLoadError, RunError, TrainingError
from whet.inference.architecture import read_architecture
from whet.inference.token_sets import TokenSets
from whet.inference.weights.model_weights import pack as pack_weights
from whet.inference.weights.packed_file import map_packed
from whet.rl.algorithms import names_of
from whet.rl.data.batch import pack
from whet.rl.learner.config import OptimizerConfig
from whet.rl.learner.forward import attention, decoder
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import LossConfig
from whet.rl.storage.checkpoints import newest_checkpoint, save_checkpoint

CROSS_ENTROPY = LossConfig(loss="cross_entropy")
BUDGETS = [1, 17, 40, 10_000]
every_architecture = pytest.mark.parametrize("model_dir", ["qwen3", "llama"], indirect=True)


def gradients(learner):
    return {name: p.grad.clone() for name, p in learner.weights.parameters()}


def weights(learner):
    return {name: p.detach().clone() for name, p in learner.weights.parameters()}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def engine_weights(named, model_dir, dtype):
    return pack_weights(named, read_architecture(model_dir), dtype=dtype, device=torch.device("cpu"))


def reference(model_dir, sequences, advantages):
    """Logprobs of trained tokens and gradients of -A log p, one sequence at a time through plain transformers."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    logprobs = []
    for sequence, advantage in zip(sequences, advantages, strict=True):
        ids = torch.from_numpy(sequence.ids).long()[None]
        temperatures = torch.from_numpy(np.broadcast_to(sequence.temperature, len(sequence))[1:].astype(np.float32))
        logits = model(ids).logits[0, :-1] / temperatures[:, None]
        if sequence.kept is not None:
            cut_TV = torch.zeros_like(logits)
            for place, count in enumerate(sequence.kept.counts[1:]):
                if count:
                    cut_TV[place] = -math.inf
                    cut_TV[place, sequence.kept.take(np.array([place + 1])).ids] = 0.0
            logits = logits + cut_TV
        taken = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]
        trained = torch.from_numpy(sequence.trained[1:])
        (-advantage * taken[trained]).sum().backward()
        logprobs.append(np.concatenate([[0], (taken * trained).detach().numpy()]))
    return np.concatenate(logprobs), {name: p.grad for name, p in model.named_parameters()}


@every_architecture
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_gradients_are_those_of_plain_transformers_for_every_packing(
    model_dir, make, make_rollouts, temperature
):
    """Invariants 2 and 3 of docs/design/training-loop.md."""
    sequences = make_rollouts(temperature=temperature)
    advantages = np.linspace(-1, 2, len(sequences))
    expected_logprobs, expected_gradients = reference(model_dir, sequences, advantages)
    for budget in BUDGETS:
        learner = make(micro_batch_tokens=budget)
        batch = pack(sequences, advantages)
        np.testing.assert_allclose(learner.token_logprobs(batch), expected_logprobs, atol=2e-5)
        learner.forward_backward(batch, CROSS_ENTROPY)
        for name, gradient in gradients(learner).items():
            torch.testing.assert_close(gradient, expected_gradients[name], atol=2e-4, rtol=2e-4, msg=name)


@pytest.mark.parametrize("budget", [17, 10_000])
def test_weights_multiply_the_loss_of_a_sequences_tokens(make, make_rollouts, budget):
    sequences, numbers = make_rollouts(), np.random.default_rng(2)
    advantages = numbers.normal(size=len(sequences))
    weights = numbers.uniform(0.1, 3, len(sequences)).astype(np.float32)
    weighted, plain = make(micro_batch_tokens=budget), make(micro_batch_tokens=budget)
    found = weighted.forward_backward(pack(sequences, advantages, weights), CROSS_ENTROPY)
    expected = plain.forward_backward(pack(sequences, advantages * weights), CROSS_ENTROPY)
    assert found.loss == pytest.approx(expected.loss, rel=1e-3)
    for name, gradient in gradients(weighted).items():
        torch.testing.assert_close(gradient, gradients(plain)[name], atol=1e-5, rtol=1e-4, msg=name)


def test_many_rollouts_of_one_prompt_have_the_gradients_of_one_at_a_time(model_dir, make, make_rollouts):
    sequences = make_rollouts(groups=((12, 15),))
    advantages = np.linspace(-1, 2, 12)
    _, expected = reference(model_dir, sequences, advantages)
    learner = make()
    learner.forward_backward(pack(sequences, advantages), CROSS_ENTROPY)
    for name, gradient in gradients(learner).items():
        torch.testing.assert_close(gradient, expected[name], atol=2e-4, rtol=2e-4, msg=name)


def own_temperatures(sequences):
    """Every sequence, and every token of it, is sampled at another temperature."""
    numbers = np.random.default_rng(5).uniform(0.3, 2.5, sum(map(len, sequences))).astype(np.float32)
    places = np.cumsum([0, *map(len, sequences)])
    parts = zip(sequences, places[:-1], places[1:], strict=True)
    return [dataclasses.replace(sequence, temperature=numbers[a:b]) for sequence, a, b in parts]


def own_sets(sequences):
    """Every trained token was drawn from a few tokens, of which it is one; another set for each."""
    rng, found = np.random.default_rng(6), []
    for sequence in sequences:
        sets = [
            np.union1d(rng.integers(0, 61, rng.integers(1, 9)), token).astype(np.int32)
            if trained and rng.random() < 0.7
            else np.zeros(0, np.int32)
            for token, trained in zip(sequence.ids, sequence.trained, strict=True)
        ]
        found.append(dataclasses.replace(sequence, kept=TokenSets.of(sets)))
    return found


@pytest.mark.parametrize("sampled", [own_temperatures, own_sets], ids=["temperatures", "sets"])
def test_sequences_that_share_a_predictor_keep_each_tokens_own_temperature_and_set(
    model_dir, make, make_rollouts, sampled
):
    sequences = [*make_rollouts(groups=((4, 9), (2, 5))), *make_rollouts(groups=((4, 9), (2, 5)))]
    sequences = sampled(sequences)  # each is there twice, so every predictor of one is shared
    advantages = np.linspace(-1, 2, len(sequences))
    expected_logprobs, expected_gradients = reference(model_dir, sequences, advantages)
    for budget in BUDGETS:
        learner = make(micro_batch_tokens=budget)
        batch = pack(sequences, advantages)
        np.testing.assert_allclose(learner.token_logprobs(batch), expected_logprobs, atol=1e-4)
        learner.forward_backward(batch, CROSS_ENTROPY)
        for name, gradient in gradients(learner).items():
            torch.testing.assert_close(gradient, expected_gradients[name], atol=5e-4, rtol=5e-4, msg=name)


def test_one_prompt_at_two_temperatures_is_two_distributions_of_one_predictor(make, make_rollouts):
    first, *_ = make_rollouts(groups=((1, 9),))
    both = [dataclasses.replace(first, temperature=temperature) for temperature in (0.5, 2.0)]
    together = make().token_logprobs(pack(both))
    apart = np.concatenate([make().token_logprobs(pack([sequence])) for sequence in both])
    np.testing.assert_allclose(together, apart, atol=1e-5)
    assert np.abs(together[: len(first)] - together[len(first) :]).max() > 0.1


@pytest.mark.parametrize("keys", [attention.EAGER_KEYS, 0])
def test_what_one_sequence_says_changes_nothing_of_another_in_the_same_pack(make, sequences, monkeypatch, keys):
    monkeypatch.setattr(attention, "EAGER_KEYS", keys)
    learner = make(micro_batch_tokens=10_000)
    changed = dataclasses.replace(sequences[0], ids=(sequences[0].ids + sequences[0].trained) % 61)
    before, after = (learner.token_logprobs(pack([first, *sequences[1:]])) for first in (sequences[0], changed))
    own = len(sequences[0])
    assert np.abs(before[:own] - after[:own]).max() > 0.01
    np.testing.assert_array_equal(before[own:], after[own:])


@pytest.mark.parametrize("groups", [((3, 9), (1, 6)), ((1, 9), (1, 4), (1, 6))], ids=["shared prompts", "none shared"])
def test_long_sequences_take_the_fused_attention_and_agree(make, make_rollouts, monkeypatch, groups):
    batch = pack(make_rollouts(groups=groups))
    eager, fused = make(), make()
    eager.forward_backward(batch, CROSS_ENTROPY)
    monkeypatch.setattr(attention, "EAGER_KEYS", 0)
    fused.forward_backward(batch, CROSS_ENTROPY)
    for name, gradient in gradients(fused).items():
        torch.testing.assert_close(gradient, gradients(eager)[name], atol=2e-4, rtol=2e-4, msg=name)


LIMITS = [  # the learner of these tests is far from what sampled: some sequences are within, and some are not
    {"tis_limit": 1.5},
    {"mis_limit": 1.5},
    {"mis_limit": math.exp(20), "mis_level": "sequence"},
    {"mis_limit": math.exp(3.5), "mis_level": "geometric"},
]


@pytest.mark.parametrize(
    "config",
    [*({"loss": loss} for loss in names_of("loss")), *({"loss": "importance_sampling", **limits} for limits in LIMITS)],
    ids=lambda config: " ".join(map(str, config.values())),
)
def test_no_loss_depends_on_micro_batches_or_on_the_order_of_sequences(make, sequences, config):
    advantages = np.linspace(-1, 2, len(sequences))
    config = LossConfig(**config)
    whole, pieces = make(micro_batch_tokens=10_000), make(micro_batch_tokens=15)
    expected = whole.forward_backward(pack(sequences, advantages), config)
    found = pieces.forward_backward(pack(sequences[::-1], advantages[::-1]), config)
    assert found.tokens == expected.tokens == sum(int(s.trained.sum()) for s in sequences)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.sums == pytest.approx(expected.sums, rel=1e-4)
    assert all(0 < expected.sums[name] < found.tokens for name in ("truncated", "masked") if name in expected.sums)
    for name, gradient in gradients(pieces).items():
        scale = gradients(whole)[name].abs().max().item()
        torch.testing.assert_close(gradient, gradients(whole)[name], atol=1e-4 * scale, rtol=1e-3, msg=name)


def test_gradients_of_two_batches_add_up(make, sequences):
    both, apart = make(), make()
    both.forward_backward(pack(sequences), CROSS_ENTROPY)
    apart.forward_backward(pack(sequences[:3]), CROSS_ENTROPY)
    apart.forward_backward(pack(sequences[3:]), CROSS_ENTROPY)
    for name, gradient in gradients(apart).items():
        torch.testing.assert_close(gradient, gradients(both)[name], atol=1e-4, rtol=1e-4, msg=name)


def test_outputs_of_two_parts_add_up(make, sequences):
    whole = make().forward_backward(pack(sequences), LossConfig(loss="ppo"))
    learner = make()
    outputs = [learner.forward_backward(pack(part), LossConfig(loss="ppo")) for part in (sequences[:2], sequences[2:])]
    both = outputs[0] + outputs[1]
    assert both.tokens == whole.tokens
    assert (both.loss, both.sums) == (pytest.approx(whole.loss), pytest.approx(whole.sums, rel=1e-5))
    assert np.concatenate([part.values.logprobs_T for part in outputs]) == pytest.approx(whole.values.logprobs_T)


def test_a_part_without_a_token_to_learn_from_adds_nothing(make, sequences):
    silent = [dataclasses.replace(sequence, trained=np.zeros_like(sequence.trained)) for sequence in sequences]
    learner = make()
    output = learner.forward_backward(pack(silent), LossConfig())
    assert (output.loss, output.tokens) == (0.0, 0)
    assert all(parameter.grad is None for parameter in learner.optimizer.parameters)
    assert (output.values.logprobs_T == 0).all()
    assert (output + learner.forward_backward(pack(sequences), LossConfig())).tokens == pack(sequences).trained_tokens


def test_diagnostics_of_an_on_policy_batch(make, sequences):
    learner = make()
    logprobs = np.split(learner.token_logprobs(pack(sequences)), np.cumsum([len(s) for s in sequences])[:-1])
    on_policy = [dataclasses.replace(s, logprobs=lp) for s, lp in zip(sequences, logprobs, strict=True)]
    output = learner.forward_backward(pack(on_policy, np.ones(len(sequences))), LossConfig())
    assert output.sums["kl"] == pytest.approx(0, abs=1e-6)
    assert output.sums["clipped"] == 0
    assert output.loss == pytest.approx(-output.tokens, rel=1e-5)
    assert 0 < output.sums["entropy"] / output.tokens < math.log(61)


def test_kl_is_the_k3_estimate(make, batch):
    learner = make()
    log_ratio = (learner.token_logprobs(batch) - batch.logprobs)[batch.trained].astype(np.float64)
    output = learner.forward_backward(batch, LossConfig())
    assert output.sums["kl"] == pytest.approx((np.exp(log_ratio) - 1 - log_ratio).sum(), rel=1e-4)


def test_a_step_divides_by_the_denominator_and_counts_versions(make, batch):
    learner = make(OptimizerConfig(type="sgd", momentum=0))
    before = weights(learner)
    learner.forward_backward(batch, CROSS_ENTROPY)
    expected = {name: before[name] - 0.5 * gradient / 4 for name, gradient in gradients(learner).items()}
    output = learner.optim_step(OptimParams(learning_rate=0.5, denominator=4, max_grad_norm=None))
    assert (output.version, learner.version, output.learning_rate) == (1, 1, 0.5)
    for name, weight in weights(learner).items():
        torch.testing.assert_close(weight, expected[name], atol=1e-5, rtol=1e-5, msg=name)
    assert all(p.grad is None for _, p in learner.weights.parameters())


def test_the_schedule_is_applied_to_the_peak_learning_rate(make, batch):
    learner = make(OptimizerConfig(schedule="linear", warmup_steps=2), max_steps=4)
    rates = []
    for _ in range(4):
        learner.forward_backward(batch, CROSS_ENTROPY)
        rates.append(learner.optim_step(OptimParams(learning_rate=0.01, denominator=1)).learning_rate)
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.005])


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_training_makes_the_demonstrations_likelier(make, sequences, kind):
    learner = make(OptimizerConfig(type=kind), max_steps=30)
    batch = pack(sequences)
    losses = []
    for _ in range(15):
        output = learner.forward_backward(batch, CROSS_ENTROPY)
        losses.append(output.loss / output.tokens)
        learner.optim_step(OptimParams(learning_rate=0.02, denominator=output.tokens))
    assert losses[-1] < 0.5 * losses[0]


def trained(learner, batch, steps):
    outputs = []
    for _ in range(steps):
        output = learner.forward_backward(batch, LossConfig())
        step = learner.optim_step(OptimParams(learning_rate=1e-3, denominator=output.tokens))
        outputs.append((output.loss, output.sums, step))
    return outputs


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_a_resumed_learner_does_bit_for_bit_what_the_other_would_have_done(make, batch, tmp_path, kind):
    settings = OptimizerConfig(type=kind, schedule="cosine", warmup_steps=2)
    uninterrupted = make(settings)
    trained(uninterrupted, batch, 2)
    uninterrupted.save(tmp_path)
    random_after = torch.rand(3)
    expected = trained(uninterrupted, batch, 3)

    resumed = make(settings, seed=99)
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(3), random_after)
    assert resumed.version == 2
    assert trained(resumed, batch, 3) == expected
    assert equal(weights(resumed), weights(uninterrupted))


def test_a_saved_learner_that_is_torn_or_anothers_is_refused(make, batch, tmp_path):
    learner = make()
    trained(learner, batch, 1)
    learner.save(tmp_path)
    with pytest.raises(RunError, match="adamw"):
        make(OptimizerConfig(type="sgd")).load(tmp_path)
    file = tmp_path / "weights.safetensors"
    os.truncate(file, file.stat().st_size - 10)
    with pytest.raises(RunError, match="cannot read the saved weights"):
        make().load(tmp_path)
    (tmp_path / "learner.json").unlink()
    with pytest.raises(RunError, match="cannot read the saved learner"):
        make().load(tmp_path)


def test_published_weights_are_what_an_engine_makes_of_them_and_only_two_stay(make, model_dir, batch):
    learner = make()
    updates = []
    for _ in range(4):
        trained(learner, batch, 1)
        updates.append(learner.publish())
    assert [update.version for update in updates] == [1, 2, 3, 4]
    assert sorted(updates[0].path.parent.iterdir()) == [updates[2].path, updates[3].path]
    packed = engine_weights(weights(learner), model_dir, torch.float32)
    assert equal(map_packed(updates[-1].path, like=packed).tensors(), packed.tensors())


def test_only_what_no_engine_reads_any_more_is_written_over(make, model_dir, batch):
    learner = make()
    like = engine_weights(weights(learner), model_dir, torch.float32)
    files, held = [], []
    for _ in range(6):
        trained(learner, batch, 1)
        path = learner.publish().path
        files.append(path.stat().st_ino)
        expected = engine_weights(weights(learner), model_dir, torch.float32).tensors()
        held.append((map_packed(path, like=like).tensors(), expected))
        if len(files) > 2:  # until then it was behind
            del held[:-1]
        assert all(equal(mapped, expected) for mapped, expected in held)
    assert len(set(files[:3])) == 3
    assert files[3:] == [files[1], files[2], files[1]]


def test_weights_are_published_in_the_dtype_that_engines_want(make, model_dir):
    """Which is where they are rounded, once: an engine of that dtype has nothing left to do."""
    learner = make(publish_dtype="bfloat16")
    packed = engine_weights(weights(learner), model_dir, torch.bfloat16)
    path = learner.publish().path
    assert path.stat().st_size < 0.6 * make().publish().path.stat().st_size
    assert equal(map_packed(path, like=packed).tensors(), packed.tensors())


def test_weights_are_published_under_the_names_of_a_checkpoint_where_the_engine_wants_those(make, batch, tmp_path):
    learner = make(publish_format="checkpoint")
    updates = []
    for _ in range(3):
        trained(learner, batch, 1)
        updates.append(learner.publish())
    assert [update.kind for update in updates] == ["model"] * 3
    assert sorted(updates[0].path.parent.iterdir()) == [updates[1].path, updates[2].path]
    learner.export(tmp_path / "export")
    assert equal(load_file(updates[-1].path), load_file(tmp_path / "export" / "model.safetensors"))


def test_an_exported_model_loads_in_plain_transformers_with_its_tokenizer(make, batch, tmp_path):
    learner = make()
    trained(learner, batch, 2)
    learner.export(tmp_path / "fp32")
    learner.export(tmp_path / "bf16", "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "fp32")
    assert equal(dict(model.named_parameters()), weights(learner))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "bf16").dtype == torch.bfloat16
    assert (tmp_path / "fp32" / "tokenizer_config.json").is_file()


def test_bfloat16_matrix_products_come_near_and_keep_fp32_weights(make, batch):
    exact, rough = make(), make(dtype="bfloat16")
    difference = np.abs(rough.token_logprobs(batch) - exact.token_logprobs(batch))
    assert 0 < difference.max() < 0.5
    trained(rough, batch, 1)
    assert {w.dtype for w in weights(rough).values()} == {torch.float32}


@every_architecture
@pytest.mark.parametrize("budget", [17, 10_000])
def test_in_bfloat16_products_come_in_few_shapes_and_what_fills_them_up_changes_nothing(
    make, batch, monkeypatch, budget
):
    learners, shapes = [], set()
    for places in (1, 64):
        monkeypatch.setattr(decoder, "PLACES", places)
        learners.append(make(dtype="bfloat16", micro_batch_tokens=budget))
        learners[-1].forward_backward(batch, CROSS_ENTROPY)
    for name, gradient in gradients(learners[0]).items():
        torch.testing.assert_close(
            gradients(learners[1])[name], gradient, atol=0.02 * float(gradient.abs().max()), rtol=0
        )
    for part in learners[1].weights.model.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda _, inputs, __: shapes.add(len(inputs[0])))
    learners[1].token_logprobs(batch)
    assert shapes
    assert all(rows % 64 == 0 for rows in shapes)


def poisoned(sequences, index, advantage=1.0, **changes):
    damaged = [dataclasses.replace(s, **changes) if i == index else s for i, s in enumerate(sequences)]
    return pack(damaged, [advantage if i == index else 1.0 for i in range(len(sequences))])


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda s: {"advantage": math.nan}, "advantages are not finite"),
        (lambda s: {"logprobs": np.where(s.trained, np.nan, 0).astype("f4")}, "sampler's logprobs are not finite"),
        (lambda s: {"logprobs": np.where(s.trained, -1e3, 0).astype("f4"), "advantage": -1}, "ratio of learner"),
    ],
)
def test_a_loss_that_is_not_finite_names_its_rollouts_and_leaves_no_gradient(make, sequences, change, cause):
    learner = make(micro_batch_tokens=20)
    with pytest.raises(TrainingError, match=rf"rollouts task 1 rollout 0: .*{cause}"):
        learner.forward_backward(poisoned(sequences, 3, **change(sequences[3])), LossConfig(loss="importance_sampling"))
    assert all(p.grad is None for _, p in learner.weights.parameters())


def test_of_many_rollouts_whose_loss_is_not_finite_three_are_named(make, make_rollouts):
    learner = make()
    batch = pack(many := make_rollouts(groups=((4, 5), (4, 5))), [math.inf] * len(many))
    with pytest.raises(TrainingError, match=r"rollouts task 0 rollout 0, [^,]*, task 0 rollout 2 and 5 more: "):
        learner.forward_backward(batch, LossConfig(loss="importance_sampling"))


def test_weights_that_diverged_are_named_as_the_cause(make, batch):
    learner = make()
    with torch.no_grad():
        learner.weights.model.lm_head.weight.fill_(math.nan)
    with pytest.raises(TrainingError, match="weights have diverged"):
        learner.forward_backward(batch, LossConfig())


def test_a_gradient_that_is_not_finite_stops_the_step_and_leaves_the_weights(make, batch):
    learner = make()
    learner.forward_backward(batch, LossConfig())
    before = weights(learner)
    next(p for _, p in learner.weights.parameters()).grad.view(-1)[0] = math.inf
    with pytest.raises(TrainingError, match="step 1: the gradient is not finite"):
        learner.optim_step(OptimParams(learning_rate=1.0, denominator=1))
    assert equal(weights(learner), before)
    assert learner.version == 0


def test_a_model_that_is_missing_torn_or_of_another_kind_is_refused(make, model_dir, tmp_path, monkeypatch):
    from whet.rl.learner.make import make_learner

    def attempt(path):
        make_learner(
            path, optimizer=OptimizerConfig(), lora=None, max_steps=1, seed=0, publish_directory=tmp_path / "published"
        )

    with pytest.raises(ModelLoadError, match=r"config\.json"):
        attempt(tmp_path / "nowhere")
    config = json.loads((model_dir / "config.json").read_text())
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "config.json").write_text(json.dumps(config))
    (torn / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match="cannot load"):
        attempt(torn)
    (torn / "config.json").write_text(json.dumps({**config, "model_type": "t5", "is_encoder_decoder": True}))
    with pytest.raises(ModelLoadError, match="t5 model has an encoder"):
        attempt(torn)


@contextlib.contextmanager
def files_no_larger_than(size):
    """Like a disk that fills up: writing further fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_stops_a_checkpoint_or_a_publication_with_one_line(make, batch, tmp_path):
    learner = make()
    trained(learner, batch, 1)
    weights_size = sum(w.numel() * 4 for w in weights(learner).values())
    for room in (weights_size // 2, weights_size * 3 // 2):  # too little for the weights, too little for the moments
        with files_no_larger_than(room), pytest.raises(TrainingError, match="step_1: cannot write the checkpoint"):
            save_checkpoint(tmp_path, 1, learner.save, keep=1)
    with files_no_larger_than(weights_size // 2), pytest.raises(RunError, match="cannot hand the weights over"):
        learner.publish()
    assert newest_checkpoint(tmp_path) == (None, [])
