"""The KL term holds the learner to a policy that stands still; the entropy bonus pushes it away from certainty.

Estimators worked by hand: p = .5 .2, f = .25 .4, so log(p / f) = ln 2, -ln 2.
"""

import dataclasses
import itertools
import math
import threading

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from whet.errors import ConfigError, ModelLoadError, TrainingError
from whet.rl.learner.config import LoraConfig, OptimizerConfig
from whet.rl.learner.forward import forward_pass
from whet.rl.learner.protocol import OptimParams
from whet.rl.learner.reference import kl_of_likeliest, kl_to_reference
from whet.rl.sections.algorithm import LossConfig

KL = LossConfig(loss="cross_entropy", kl_coef=0.5)
LORA = LoraConfig(rank=4, alpha=8)
P = torch.tensor([0.5, 0.2], dtype=torch.float64)
F = torch.tensor([0.25, 0.4], dtype=torch.float64)
LN2 = math.log(2)


def step(learner, batch, loss=LossConfig(loss="cross_entropy")):  # noqa: B008
    output = learner.forward_backward(batch, loss)
    learner.optim_step(OptimParams(learning_rate=0.02, denominator=output.tokens))
    return output


def gradients(learner):
    return {name: p.grad.clone() for name, p in learner.weights.parameters()}


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_is_zero_at_first_and_measured_from_the_first_weights_ever_after(make, batch, lora, estimator):
    learner = make(lora=lora, reference="initial")
    kl = LossConfig(loss="cross_entropy", kl_coef=0.5, kl_estimator=estimator)
    first = learner.token_logprobs(batch)
    assert learner.forward_backward(batch, kl).sums["kl_reference"] == 0
    learner.optimizer.clear_gradients()
    for _ in range(3):
        step(learner, batch)
    now, then = (torch.from_numpy(x[batch.trained]) for x in (learner.token_logprobs(batch), first))
    expected = kl_to_reference(now.double(), then.double(), estimator).sum().item()
    plain = learner.forward_backward(batch, LossConfig(loss="cross_entropy")).loss
    output = learner.forward_backward(batch, kl)
    assert output.sums["kl_reference"] == pytest.approx(expected, rel=1e-4)
    assert output.loss == pytest.approx(plain + 0.5 * expected, rel=1e-5)


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
def test_the_kl_pulls_back_to_the_reference(make, batch, lora):
    gaps = []
    for coef in (0.0, 5.0):
        learner = make(OptimizerConfig(type="sgd"), lora, reference="initial")
        first = learner.token_logprobs(batch)
        for _ in range(5):
            step(learner, batch, LossConfig(loss="cross_entropy", kl_coef=coef))
        gaps.append(np.abs(learner.token_logprobs(batch) - first).sum())
    assert gaps[1] < 0.8 * gaps[0]


@pytest.mark.parametrize(
    ("lora", "other", "apart"),
    [(None, False, True), (LORA, False, False), (LORA, True, True)],
    ids=["all weights", "lora", "lora and another model"],
)
def test_a_thread_for_the_reference_changes_nothing_and_is_not_used_for_weights_that_are_trained(
    make, model_dir, batch, lora, other, apart, monkeypatch
):
    reference = str(model_dir) if other else "initial"
    inline, beside = (
        make(lora=lora, reference=reference, micro_batch_tokens=12, reference_thread=own) for own in (False, True)
    )
    for learner in (inline, beside):
        step(learner, batch)
    outputs, computed_in = [], []

    def hidden_states(*args, **options):
        computed_in[-1].add(threading.get_ident())
        return forward(*args, **options)

    forward = forward_pass.hidden_states
    monkeypatch.setattr(forward_pass, "hidden_states", hidden_states)
    for learner in (inline, beside):
        computed_in.append(set())
        outputs.append(learner.forward_backward(batch, KL))
    assert [len(threads) for threads in computed_in] == [1, 2 if apart else 1]
    assert outputs[0].sums == outputs[1].sums
    assert outputs[0].loss == outputs[1].loss
    for name, gradient in gradients(inline).items():
        assert torch.equal(gradient, gradients(beside)[name])
    beside.close()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_a_kl_in_the_reward_is_that_of_a_token_and_all_later_ones_of_its_sequence(make, batch, estimator):
    """Formula in a loop: x = log f - log q; k1 = -x, k3 = exp(x) - 1 - x."""
    learner, plain = make(reference="initial", micro_batch_tokens=12), make()
    reference_T, advantages_T, total = plain.token_logprobs(batch).astype(float), batch.advantages.astype(float), 0.0
    for start, stop in itertools.pairwise(batch.cu_seqlens):
        to_come = 0.0
        for t in range(stop - 1, start - 1, -1):
            if batch.trained[t]:
                x = reference_T[t] - float(batch.logprobs[t])
                kl = -x if estimator == "k1" else math.exp(x) - 1 - x
                to_come, total = to_come + kl, total + kl
                advantages_T[t] -= 0.1 * to_come
    kl = LossConfig(loss="importance_sampling", kl_coef=0.1, kl_in="reward", kl_estimator=estimator)
    expected = plain.forward_backward(
        dataclasses.replace(batch, advantages=advantages_T.astype(np.float32)), LossConfig(loss="importance_sampling")
    )
    found = learner.forward_backward(batch, kl)
    assert found.sums["kl_reference"] == pytest.approx(total, rel=1e-5)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    scale = max(gradient.abs().max() for gradient in gradients(plain).values()).item()
    for name, gradient in gradients(learner).items():
        torch.testing.assert_close(gradient, gradients(plain)[name], rtol=0, atol=1e-6 * scale)


def test_another_model_can_be_the_reference(make, model_dir, batch, tmp_path):
    other = make()
    for _ in range(3):
        step(other, batch)
    other.export(tmp_path / "other")
    learner = make(reference=str(tmp_path / "other"))
    expected = kl_to_reference(
        torch.from_numpy(learner.token_logprobs(batch)), torch.from_numpy(other.token_logprobs(batch)), "k3"
    )
    assert learner.forward_backward(batch, KL).sums["kl_reference"] == pytest.approx(expected.sum().item(), rel=1e-4)


def test_a_reference_of_another_vocabulary_is_refused(make, model_dir, tmp_path):
    config = AutoConfig.from_pretrained(model_dir)
    config.vocab_size += 1
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "other")
    with pytest.raises(ConfigError, match="vocabulary of 62 tokens, the model that is trained one of 61"):
        make(reference=str(tmp_path / "other"))


def test_a_reference_that_is_not_there_is_named_with_its_key(make):
    with pytest.raises(ModelLoadError, match=r"^reference: there is no model directory '/nowhere'"):
        make(reference="/nowhere")


def test_a_kl_without_a_reference_is_refused(make, batch):
    with pytest.raises(TrainingError, match="made without one"):
        make().forward_backward(batch, KL)


def test_the_entropy_bonus_is_taken_off_the_loss_and_its_gradient_raises_entropy(make, batch):
    plain, bonus = make(), make()
    before = plain.forward_backward(batch, LossConfig(loss="cross_entropy"))
    after = bonus.forward_backward(batch, LossConfig(loss="cross_entropy", entropy_coef=0.3))
    assert after.loss == pytest.approx(before.loss - 0.3 * before.sums["entropy"], rel=1e-5)
    direction = {n: g - gradients(plain)[n] for n, g in gradients(bonus).items()}  # of minus 0.3 entropy
    squared = sum(d.square().sum().item() for d in direction.values())
    size = 1e-3 / squared**0.5
    with torch.no_grad():
        for name, p in plain.weights.parameters():
            p -= size * direction[name]
    moved = plain.forward_backward(batch, LossConfig(loss="cross_entropy")).sums["entropy"] - before.sums["entropy"]
    assert moved == pytest.approx(size * squared / 0.3, rel=0.05)


@pytest.mark.parametrize(
    ("estimator", "values", "gradients"),
    [
        ("k1", [LN2, -LN2], [LN2, -LN2]),
        ("k2", [LN2**2 / 2, LN2**2 / 2], [LN2, -LN2]),
        ("k3", [0.5 - 1 + LN2, 2 - 1 - LN2], [1 - 0.5, 1 - 2]),  # f / p - 1 - log(f / p); 1 - f / p
    ],
)
def test_values_and_gradients_are_those_worked_by_hand(estimator, values, gradients):
    logprobs = P.log().requires_grad_()
    found = kl_to_reference(logprobs, F.log(), estimator)
    found.sum().backward()
    torch.testing.assert_close(found.detach(), torch.tensor(values, dtype=torch.float64))
    torch.testing.assert_close(logprobs.grad, torch.tensor(gradients, dtype=torch.float64))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_the_kl_on_average(estimator):
    p, f = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    expected = (p * (p / f).log()).sum()
    torch.testing.assert_close((p * kl_to_reference(p.log(), f.log(), estimator)).sum(), expected)


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_the_gradient_of_k1_and_k2_is_that_of_the_kl_on_average(estimator):
    """Over all tokens of a softmax, each weighed by its probability when it was drawn."""
    logits = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.5, -0.2], dtype=torch.float64), -1)
    logp = torch.log_softmax(logits, -1)
    (expected,) = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits, retain_graph=True)
    drawn = logp.detach().exp()
    (found,) = torch.autograd.grad((drawn * kl_to_reference(logp, reference, estimator)).sum(), logits)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "kind",
    [{}, {"dtype": "bfloat16", "weights_dtype": "bfloat16"}, {"lora": LORA}, {"lora": LoraConfig(rank=4, dropout=0.5)}],
    ids=["all weights", "masters", "lora", "dropout"],
)
def test_a_reset_reference_is_the_policy_of_then_and_is_saved(make, batch, kind, tmp_path):
    learner = make(OptimizerConfig(type="sgd", momentum=0.0), reference="initial", micro_batch_tokens=12, **kind)
    reset = OptimParams(learning_rate=0.02, denominator=batch.trained_tokens, reference_share=1.0)
    for _ in range(2):
        step(learner, batch)
        learner.forward_backward(batch, KL)
        learner.optim_step(reset)
        then = learner.token_logprobs(batch)
    assert learner.forward_backward(batch, KL).sums["kl_reference"] == pytest.approx(0, abs=1e-6)
    learner.optimizer.clear_gradients()
    step(learner, batch)
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    again = make(OptimizerConfig(type="sgd", momentum=0.0), reference="initial", micro_batch_tokens=12, **kind)
    again.load(tmp_path / "saved")
    now, then = (torch.from_numpy(x[batch.trained]).double() for x in (learner.token_logprobs(batch), then))
    torch.manual_seed(1)
    output = learner.forward_backward(batch, KL)
    assert output.sums["kl_reference"] == pytest.approx(kl_to_reference(now, then, "k3").sum().item(), rel=1e-3)
    assert output.sums["kl_reference"] > 1e-3
    torch.manual_seed(1)
    assert again.forward_backward(batch, KL).loss == output.loss
    assert all(torch.equal(one, gradients(again)[name]) for name, one in gradients(learner).items())


@pytest.mark.parametrize("count", [3, 99])
def test_the_kl_over_likeliest_tokens_and_the_rest_is_that_of_the_formula(count):
    """In double precision, over a vocabulary of 7."""
    torch.manual_seed(0)
    logits_NV, other_NV = torch.randn(2, 5, 7, dtype=torch.float64)
    logits_NV.requires_grad_()
    p_NV, q_NV = logits_NV.softmax(-1), other_NV.softmax(-1)
    ids_NK = logits_NV.topk(min(count, 7)).indices
    found_N = kl_of_likeliest(p_NV.log().gather(1, ids_NK), q_NV.log().gather(1, ids_NK))
    whole_N = (p_NV * (p_NV / q_NV).log()).sum(-1)
    parts = [[], []]
    for p_V, q_V, ids_K in zip(p_NV, q_NV, ids_NK, strict=True):
        for part, probabilities_V in zip(parts, (p_V, q_V), strict=True):
            kept = [probabilities_V[n] for n in ids_K.tolist()]
            rest = [probabilities_V[n] for n in range(7) if n not in ids_K.tolist()]
            part.append(torch.stack([*kept, *([sum(rest)] if rest else [])]))
    coarse_N = torch.stack([(p * (p / q).log()).sum() for p, q in zip(*parts, strict=True)])
    torch.testing.assert_close(found_N, coarse_N if count < 7 else whole_N, rtol=1e-9, atol=1e-9)
    assert (found_N <= whole_N + 1e-9).all()
    found, expected = (torch.autograd.grad(of.sum(), logits_NV, retain_graph=True)[0] for of in (found_N, coarse_N))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("lora", "kept"), [(None, 4), (LORA, 4), (None, 61)])
def test_distillation_over_likeliest_tokens_has_the_gradient_of_plain_autograd(make, model_dir, batch, lora, kept):
    learner = make(OptimizerConfig(type="sgd"), lora, reference="initial", micro_batch_tokens=12)
    for _ in range(3):
        step(learner, batch)
    taught = dataclasses.replace(batch, advantages=0 * batch.advantages, distilled=np.ones(batch.sequences, bool))
    output = learner.forward_backward(taught, LossConfig(loss="ppo", distill_top_k=kept))
    found = gradients(learner)
    learner.optimizer.clear_gradients()

    model = learner.weights.model
    reference = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    total = torch.zeros(())
    for start, stop in itertools.pairwise(batch.cu_seqlens.tolist()):
        ids, trained = torch.from_numpy(batch.ids[start:stop]).long(), torch.from_numpy(batch.trained[start:stop])
        temperatures = torch.from_numpy(batch.temperatures[start:stop])[1:][trained[1:], None]
        logs = [
            (one(ids[None]).logits[0, :-1][trained[1:]] / temperatures).log_softmax(-1) for one in (model, reference)
        ]
        top = logs[0].detach().topk(kept).indices
        total = total + kl_of_likeliest(logs[0].gather(1, top), logs[1].detach().gather(1, top)).sum()
    total.backward()
    assert output.sums["kl_teacher"] == pytest.approx(float(total), rel=1e-5)
    assert float(total) > 0.1
    scale = max(gradient.abs().max() for gradient in gradients(learner).values()).item()
    for name, gradient in gradients(learner).items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-5 * scale)  # both in float32


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_reference_with_a_decay_is_the_moving_average_of_the_policy(make, batch, lora, tmp_path):
    """In double precision, from the parameters before and after each step."""
    learner = make(OptimizerConfig(type="sgd", momentum=0.0), lora, reference="initial")
    policy = dict(learner.weights.parameters())
    average = {name: p.detach().double().clone() for name, p in policy.items()}
    for number in range(4):
        learner.forward_backward(batch, KL)
        last = number % 2 == 1  # two optimiser steps a batch
        learner.optim_step(OptimParams(0.02, batch.trained_tokens, ends_batch=last, reference_share=0.2))
        if last:
            average = {name: 0.8 * mean + 0.2 * policy[name].detach().double() for name, mean in average.items()}
    for name, mean in average.items():
        torch.testing.assert_close(
            learner._reference.held[name].double(), mean, rtol=0, atol=1e-6 * float(mean.abs().max())
        )
    seen = learner.reference_logprobs(batch)
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    again = make(OptimizerConfig(type="sgd", momentum=0.0), lora, reference="initial")
    again.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.reference_logprobs(batch), seen)
    learner.weights.fill(policy, dict(learner._reference.held))
    np.testing.assert_allclose(learner.token_logprobs(batch), seen, atol=1e-6)


def test_a_lent_adapter_leaves_the_gradient_of_the_policy_as_it_is(make, batch):
    """Of one micro-batch with another's reference in between: as with the reference's logprobs as numbers."""
    learner = make(OptimizerConfig(type="sgd"), LORA, reference="initial", micro_batch_tokens=12)
    step(learner, batch)
    learner._reference.hold(learner.weights)
    learner._reference.move(learner.weights, 1.0)
    reference = learner.token_logprobs(batch)
    step(learner, batch)
    logprobs_T, expected = learner.token_logprobs(batch), dict[str, torch.Tensor]()
    output = learner.forward_backward(batch, LossConfig(loss="cross_entropy", kl_coef=0.5, kl_estimator="k1"))
    found = gradients(learner)
    learner.optimizer.clear_gradients()
    # k1's gradient is (log p - log f) grad log p: that of a cross entropy with other advantages
    gap_T = np.where(batch.trained, logprobs_T - reference, 0)
    plain = dataclasses.replace(batch, advantages=(batch.advantages - 0.5 * gap_T).astype(np.float32))
    learner.forward_backward(plain, LossConfig(loss="cross_entropy"))
    expected = gradients(learner)
    assert output.sums["kl_reference"] != 0
    scale = max(gradient.abs().max() for gradient in expected.values()).item()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-6 * scale)


def test_a_reset_optimiser_goes_on_as_a_new_one(make, batch):
    reset, plain = make(), make()
    for learner, resets in ((reset, True), (plain, False)):
        output = learner.forward_backward(batch, LossConfig(loss="cross_entropy"))
        learner.optim_step(OptimParams(0.02, output.tokens, resets_optimizer=resets))
    new = make()
    new.weights.fill(dict(new.weights.parameters()), dict(reset.weights.parameters()))
    for learner in (reset, plain, new):
        step(learner, batch)
    weights = [torch.cat([p.flatten() for _, p in learner.weights.parameters()]) for learner in (reset, plain, new)]
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])
