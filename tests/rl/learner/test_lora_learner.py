"""A LoRA adapter learns while the base stands still, and leaves as a plain PEFT adapter."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from whet.errors import ConfigError, ModelLoadError
from whet.rl.data.batch import pack
from whet.rl.learner.config import LoraConfig, OptimizerConfig
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import LossConfig

LORA = LoraConfig(rank=4, alpha=8)
HEAD = LoraConfig(rank=4, alpha=8, target_modules=("q_proj", "lm_head"), use_rslora=True)
KINDS = pytest.mark.parametrize("lora", [LORA, HEAD], ids=["layers", "output matrix"])


def trained(learner, batch, steps=2):
    outputs = []
    for _ in range(steps):
        output = learner.forward_backward(batch, LossConfig(loss="cross_entropy"))
        outputs.append((output.loss, learner.optim_step(OptimParams(learning_rate=0.02, denominator=output.tokens))))
    return outputs


def own_logprobs(learner, sequence):
    return learner.token_logprobs(pack([sequence]))[1:]


def plain_logprobs(model, sequence):
    """Of the trained tokens, through the model's own forward pass."""
    ids = torch.from_numpy(sequence.ids).long()[None]
    logits = torch.log_softmax(model(ids).logits[0, :-1], -1)
    return logits.gather(-1, ids[0, 1:, None])[:, 0].detach().numpy() * sequence.trained[1:]


def test_a_new_adapter_changes_nothing(make, batch):
    np.testing.assert_array_equal(make(lora=LORA).token_logprobs(batch), make().token_logprobs(batch))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_the_adapter_learns(make, batch, kind):
    learner = make(OptimizerConfig(type=kind), LORA)
    base = {n: p.detach().clone() for n, p in learner.weights.model.named_parameters() if not p.requires_grad}
    outputs = trained(learner, batch, 8)
    assert outputs[-1][0] < 0.8 * outputs[0][0]
    assert learner.trained_parameters < learner.parameters / 2
    assert all(torch.equal(p, base[n]) for n, p in learner.weights.model.named_parameters() if n in base)


@KINDS
@pytest.mark.parametrize("how", ["export", "publish"])
def test_the_adapter_that_leaves_loads_in_plain_peft_and_agrees(make, model_dir, sequences, tmp_path, how, lora):
    learner = make(lora=lora)
    trained(learner, pack(sequences))
    if how == "export":
        learner.export(tmp_path / "adapter")
        path = tmp_path / "adapter"
    else:
        update = learner.publish()
        assert (update.kind, update.version) == ("adapter", 2)
        path = update.path
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32), path).eval()
    for sequence in sequences:
        np.testing.assert_allclose(own_logprobs(learner, sequence), plain_logprobs(model, sequence), atol=2e-5)


def test_gradients_of_an_adapter_of_the_output_matrix_are_those_of_autograd(make, model_dir, sequences, tmp_path):
    learner = make(lora=HEAD)
    trained(learner, pack(sequences))
    learner.export(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path, is_trainable=True).eval()
    learner.forward_backward(pack(sequences), LossConfig(loss="cross_entropy"))
    for sequence in sequences:
        ids = torch.from_numpy(sequence.ids).long()
        logprobs = torch.log_softmax(model(ids[None]).logits[0, :-1] / sequence.temperature, -1)
        (-logprobs.gather(-1, ids[1:, None])[:, 0] * torch.from_numpy(sequence.trained[1:])).sum().backward()
    theirs = dict(model.named_parameters())
    for name, parameter in learner.weights.parameters():
        expected = theirs[name].grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-5 * expected.abs().max().item())


def test_the_reference_of_an_adapter_of_the_output_matrix_is_the_base(make, batch):
    learner, base = make(lora=HEAD), make()
    trained(learner, batch)
    with learner.weights.base() as model:
        (micro,) = learner._pass.micro_batches(batch, 61)
        with torch.no_grad():
            logprobs_N, _ = learner._pass.logprobs(model, micro)
    np.testing.assert_allclose(logprobs_N, base.token_logprobs(batch)[micro.layout.targets], atol=1e-5)


def test_older_publications_are_removed(make, batch):
    learner = make(lora=LORA)
    paths = []
    for _ in range(4):
        trained(learner, batch, 1)
        paths.append(learner.publish().path)
    assert sorted(paths[0].parent.iterdir()) == paths[2:]


def test_a_resumed_adapter_with_dropout_does_bit_for_bit_what_the_other_would_have_done(make, batch, tmp_path):
    lora = LoraConfig(rank=2, dropout=0.2)
    uninterrupted = make(lora=lora)
    trained(uninterrupted, batch)
    uninterrupted.save(tmp_path)
    expected = trained(uninterrupted, batch)
    resumed = make(lora=lora, seed=5)
    resumed.load(tmp_path)
    assert trained(resumed, batch) == expected
    np.testing.assert_array_equal(resumed.token_logprobs(batch), uninterrupted.token_logprobs(batch))


def test_rank_alpha_dropout_and_targets_all_have_an_effect(make, batch):
    def result(**changes):
        return trained(make(lora=LoraConfig(**{"rank": 4, "alpha": 8, **changes})), batch)[-1]

    results = [result(), result(rank=2), result(alpha=16), result(dropout=0.3), result(target_modules=("q_proj",))]
    results += [result(use_rslora=True, alpha=10), result(target_modules=("q_proj", "lm_head"))]
    assert len({loss for loss, _ in results}) == len(results)


def gradients_after(learner, batch, loss):
    torch.manual_seed(3)  # the same dropout
    output = learner.forward_backward(batch, LossConfig(loss=loss))
    return output, [p.grad.clone() for _, p in learner.weights.parameters()]


def test_with_dropout_what_is_compared_is_the_policy_that_samples_and_only_gradients_have_it(make, sequences):
    learner = make(lora=LoraConfig(rank=4, alpha=8, dropout=0.5))
    trained(learner, pack(sequences), 4)
    sampled = learner.token_logprobs(pack(sequences))
    places = np.cumsum([0, *map(len, sequences)])
    parts = zip(sequences, places[:-1], places[1:], strict=True)
    on_policy = pack([replace(sequence, logprobs=sampled[a:b]) for sequence, a, b in parts], range(len(sequences)))
    for loss in ("importance_sampling", "ppo", "masked_is", "gspo"):
        learner.optimizer.clear_gradients()
        output, found = gradients_after(learner, on_policy, loss)
        assert output.sums["kl"] < 1e-6 * output.tokens
        assert output.sums["clipped"] == 0
        np.testing.assert_allclose(output.values.logprobs_T, sampled, atol=1e-5)
        learner.optimizer.clear_gradients()
        _, expected = gradients_after(learner, on_policy, "cross_entropy")  # -A log p: the policy gradient where r = 1
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    cross_entropy = LossConfig(loss="cross_entropy")  # is not compared with the sampler: its value has dropout
    losses = [learner.forward_backward(on_policy, cross_entropy).loss for _ in range(2)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_a_target_that_the_model_does_not_have_is_refused_by_name(make):
    with pytest.raises(ConfigError, match=r"no layer named c_attn\. It has .*q_proj"):
        make(lora=LoraConfig(target_modules=("q_proj", "c_attn")))


def exported(make, batch, path, **lora):
    learner = make(lora=LoraConfig(**{"rank": 4, "alpha": 8, **lora}))
    trained(learner, batch)
    learner.export(path)
    return learner


def test_an_adapter_goes_on_from_where_another_ended(make, batch, tmp_path):
    first = exported(make, batch, tmp_path / "adapter")
    second = make(lora=LORA.model_copy(update={"path": str(tmp_path / "adapter")}), seed=7)
    np.testing.assert_array_equal(second.token_logprobs(batch), first.token_logprobs(batch))
    before = second.token_logprobs(batch).sum()
    trained(second, batch)
    assert second.token_logprobs(batch).sum() > before


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"rank": 2}, "Set rank = 2."),
        ({"alpha": 3}, "Set alpha = 3"),
        ({"use_rslora": True}, "Set use_rslora = true"),
        ({"target_modules": ("q_proj",)}, r'Set target_modules = \["q_proj"\]'),
    ],
)
def test_an_adapter_of_another_shape_than_the_config_says_is_refused_with_what_to_set(
    make, batch, tmp_path, made, message
):
    exported(make, batch, tmp_path / "adapter", **made)
    with pytest.raises(ConfigError, match=message):
        make(lora=LORA.model_copy(update={"path": str(tmp_path / "adapter")}))


def test_what_is_no_adapter_or_a_torn_one_is_refused(make, batch, tmp_path):
    lora = LORA.model_copy(update={"path": str(tmp_path / "adapter")})
    (tmp_path / "adapter").mkdir()
    with pytest.raises(ConfigError, match="is not an adapter"):
        make(lora=lora)
    exported(make, batch, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(ConfigError, match="not a plain LoRA adapter"):
        make(lora=lora)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelLoadError, match="cannot read the adapter"):
        make(lora=lora)


@KINDS
def test_the_merged_model_loads_in_plain_transformers_and_agrees(make, batch, sequences, tmp_path, lora):
    learner = make(lora=lora)
    trained(learner, batch)
    learner.export_merged(tmp_path / "merged")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert (tmp_path / "merged" / "tokenizer_config.json").is_file()
    np.testing.assert_allclose(plain_logprobs(model, sequences[0]), own_logprobs(learner, sequences[0]), atol=2e-5)
