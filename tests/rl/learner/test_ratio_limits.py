"""Truncated and masked importance weights, against their formulas written out with loops and autograd."""

import math

import pytest
import torch

from whet.rl.algorithms import LossInputs, loss_fn, names_of
from whet.rl.learner.ratio_limits import limited
from whet.rl.sections.algorithm import LossConfig

TOKENS = 60
RATIO_LOSSES = sorted(set(names_of("loss")) - {"cross_entropy"})
T, C = 1.5, 2.0
LIMITS = {"token": C, "sequence": C, "geometric": 1.03}


@pytest.fixture
def inputs():
    """Ratios from 1/20 to 20, in sequences of 12, 1, 27 and 20 tokens."""
    rng = torch.Generator().manual_seed(0)
    sampled = -3 * torch.rand(TOKENS, generator=rng, dtype=torch.float64) - 0.05
    moved = torch.randn(TOKENS, generator=rng, dtype=torch.float64) * torch.linspace(0.05, 1.2, TOKENS)
    learner = (sampled + moved.clamp(-3, 3)).clamp(max=-1e-3).requires_grad_()
    advantages = torch.randn(TOKENS, generator=rng, dtype=torch.float64)
    return LossInputs(
        learner, sampled, advantages, torch.repeat_interleave(torch.tensor([7, 3, 5, 4]), torch.tensor([12, 1, 27, 20]))
    )


def kept_by_hand(inputs, level):
    """Whether each token carries loss under the limit of its level."""
    limit = LIMITS[level]
    ratios = (inputs.logprobs_N - inputs.sampled_logprobs_N).detach().exp().tolist()
    sequences = inputs.sequence_N.tolist()
    kept = []
    for ratio, sequence in zip(ratios, sequences, strict=True):
        of_sequence = [other for other, place in zip(ratios, sequences, strict=True) if place == sequence]
        product = math.prod(of_sequence)
        value = {"token": ratio, "sequence": product, "geometric": product ** (1 / len(of_sequence))}[level]
        kept.append(1 / limit <= value <= limit)
    return kept


def gradient(loss, inputs):
    (found,) = torch.autograd.grad(loss.sum(), inputs.logprobs_N)
    return found


def weighted_by_hand(name, inputs, config):
    """Loss of each token, its ratio a constant weight of at most T; what is clipped or dropped has no policy term."""
    losses = []
    tokens = (inputs.logprobs_N, inputs.sampled_logprobs_N.tolist(), inputs.advantages_N.tolist())
    for logp, logq, advantage in zip(*tokens, strict=True):
        p, ratio = math.exp(logp.item()), math.exp(logp.item() - logq)
        gone = {
            "importance_sampling": False,
            "ppo": (advantage > 0 and ratio > 1 + 0.2) or (advantage < 0 and ratio < 1 - 0.2),
            "masked_is": (advantage > 0 and p - math.exp(logq) > 0.2) or (advantage < 0 and p - math.exp(logq) < -0.2),
        }[name]
        policy = 0.0 if gone else -advantage * min(ratio, T) * logp
        losses.append(policy + (config.mask_penalty * (logp - logq) ** 2 if name == "masked_is" else 0.0))
    return torch.stack([torch.as_tensor(loss, dtype=torch.float64) + 0 * inputs.logprobs_N[0] for loss in losses])


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "masked_is"])
def test_a_truncated_weight_is_the_ratio_up_to_the_limit_and_keeps_its_gradient(name, inputs):
    config = LossConfig(loss=name, tis_limit=T)
    terms, counts = limited(loss_fn(name), inputs, config)
    expected = gradient(weighted_by_hand(name, inputs, config), inputs)
    torch.testing.assert_close(gradient(terms.loss_N, inputs), expected)
    plain = loss_fn(name)(inputs, config)
    above = inputs.log_ratio_N > math.log(T)
    acts = above if plain.clipped_N is None else above & ~plain.clipped_N
    assert 0 < counts["truncated"] == acts.sum() < TOKENS
    assert torch.equal(terms.clipped_N, acts if plain.clipped_N is None else acts | plain.clipped_N)


@pytest.mark.parametrize("level", LIMITS)
@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_a_masked_token_has_no_loss_and_the_others_have_that_of_a_batch_without_it(name, level, inputs):
    config = LossConfig(loss=name, mis_limit=LIMITS[level], mis_level=level)
    terms, counts = limited(loss_fn(name), inputs, config)
    kept = torch.tensor(kept_by_hand(inputs, level))
    assert 0 < counts["masked"] == (~kept).sum() < TOKENS
    alone = LossInputs(
        inputs.logprobs_N[kept].detach().requires_grad_(),
        inputs.sampled_logprobs_N[kept],
        inputs.advantages_N[kept],
        inputs.sequence_N[kept],
    )
    expected = loss_fn(name)(alone, config)
    assert torch.equal(terms.loss_N[kept], expected.loss_N)
    assert not terms.loss_N[~kept].any()
    assert terms.clipped_N[~kept].all()
    found = gradient(terms.loss_N, inputs)
    assert torch.equal(found[kept], gradient(expected.loss_N, alone))
    assert not found[~kept].any()


def test_importance_sampling_with_a_mask_is_icepop(inputs):
    """-M(r) A grad log p with M(r) = r within [1/C, C], else 0."""
    terms, _ = limited(loss_fn("importance_sampling"), inputs, LossConfig(loss="importance_sampling", mis_limit=C))
    ratio = inputs.log_ratio_N.detach().exp()
    weight = torch.where((ratio >= 1 / C) & (ratio <= C), ratio, 0.0)
    expected = gradient(-weight * inputs.advantages_N * inputs.logprobs_N, inputs)
    torch.testing.assert_close(gradient(terms.loss_N, inputs), expected)


def test_both_limits_act_one_within_the_other(inputs):
    config = LossConfig(loss="importance_sampling", tis_limit=T, mis_limit=C)
    terms, counts = limited(loss_fn("importance_sampling"), inputs, config)
    ratio = inputs.log_ratio_N.detach().exp()
    weight = torch.where((ratio >= 1 / C) & (ratio <= C), ratio.clamp(max=T), 0.0)
    expected = gradient(-weight * inputs.advantages_N * inputs.logprobs_N, inputs)
    torch.testing.assert_close(gradient(terms.loss_N, inputs), expected)
    within = (ratio > T) & (ratio <= C)
    assert counts == {"truncated": within.sum(), "masked": ((ratio < 1 / C) | (ratio > C)).sum()}


@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_limits_that_nothing_reaches_change_no_bit(name, inputs):
    wide = {
        "mis_limit": 1e9,
        **({"tis_limit": 1e8} if name in ("ppo", "grpo", "masked_is", "importance_sampling") else {}),
    }
    terms, counts = limited(loss_fn(name), inputs, LossConfig(loss=name, **wide))
    plain = loss_fn(name)(inputs, LossConfig(loss=name))
    assert torch.equal(terms.loss_N, plain.loss_N)
    assert torch.equal(gradient(terms.loss_N, inputs), gradient(plain.loss_N, inputs))
    assert not any(counts.values())


@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_without_limits_the_loss_is_what_it_was(name, inputs):
    terms, counts = limited(loss_fn(name), inputs, LossConfig(loss=name))
    plain = loss_fn(name)(inputs, LossConfig(loss=name))
    assert torch.equal(terms.loss_N, plain.loss_N)
    assert (terms.clipped_N is None) == (plain.clipped_N is None)
    assert counts == {}


@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_a_micro_batch_that_is_masked_whole_has_a_gradient_of_zero(name):
    learner = torch.tensor([-1.0, -1.0], requires_grad=True)
    far = LossInputs(learner, torch.tensor([-1e4, -1e4]), torch.ones(2), torch.zeros(2, dtype=torch.long))
    terms, counts = limited(loss_fn(name), far, LossConfig(loss=name, mis_limit=C))
    terms.loss_N.sum().backward()  # an infinite ratio does no harm either
    assert counts["masked"] == 2
    assert learner.grad.tolist() == [0, 0]


def test_a_truncated_infinite_ratio_has_the_weight_of_the_limit():
    learner = torch.tensor([-1.0], requires_grad=True)
    far = LossInputs(learner, torch.tensor([-1e4]), torch.ones(1), torch.zeros(1, dtype=torch.long))
    terms, _ = limited(loss_fn("importance_sampling"), far, LossConfig(loss="importance_sampling", tis_limit=T))
    terms.loss_N.sum().backward()
    assert learner.grad.item() == pytest.approx(-T, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "cispo", "tis_limit": 2}, "tis_limit would have no effect: loss = cispo does not weigh a token by"),
        (
            {"loss": "gspo", "tis_limit": 2},
            r"It is for clip_cov, grpo, importance_sampling, kl_cov, masked_is, ppo, and",
        ),
        ({"loss": "dro", "tis_limit": 2}, "tis_limit would have no effect: loss = dro"),
        ({"loss": "cross_entropy", "tis_limit": 2}, "tis_limit would have no effect: loss = cross_entropy"),
        (
            {"loss": "cross_entropy", "mis_limit": 2},
            "mis_limit would have no effect: loss = cross_entropy has no ratio",
        ),
        ({"loss": "ppo", "tis_limit": 1.2}, r"eps_high would have no effect: .* above 1 \+ eps_high = 1.2"),
        ({"tis_limit": 3, "mis_limit": 3}, "tis_limit would have no effect: tokens with a ratio above mis_limit = 3"),
        ({"mis_level": "sequence"}, "mis_level would have no effect: mis_limit is not set"),
        ({"tis_limit": 0.5}, "greater than or equal to 1"),
        ({"mis_limit": 1}, "greater than 1"),
    ],
)
def test_a_limit_without_effect_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        LossConfig(**settings)


def test_a_limit_on_tokens_within_one_on_sequences_is_taken():
    LossConfig(tis_limit=3, mis_limit=3, mis_level="sequence")
