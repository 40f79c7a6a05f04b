"""Every loss, against numbers worked by hand and against the gradient its formula has.

Four tokens of two sequences: p = .5 .9 | .1 .1, q = .4 .5 | .5 .08, so r = 1.25 1.8 | .2 1.25; A = 1 | -1.
"""

import sys

import pytest
import torch
from pydantic import ValidationError

from whet.errors import ConfigError, TrainingError
from whet.rl.algorithms import LossInputs, LossTerms, loss_fn, names_of
from whet.rl.config import RunConfig
from whet.rl.sections.algorithm import LossConfig

P = torch.tensor([0.5, 0.9, 0.1, 0.1], dtype=torch.float64)
Q = torch.tensor([0.4, 0.5, 0.5, 0.08], dtype=torch.float64)
A = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
RATIO_LOSSES = sorted(set(names_of("loss")) - {"cross_entropy"})


def inputs(p=P, q=Q, advantages=A):
    return LossInputs(p.log().requires_grad_(), q.log(), advantages, torch.tensor([4, 4, 9, 9]))


def terms(name, **constants):
    return loss_fn(name)(inputs(), LossConfig(loss=name, **constants))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("masked_is", [-1.2499502, 0.00034550, 0.00259029, 1.2500498]),
        ("ppo", [-1.2, -1.2, 0.8, 1.25]),
        ("grpo", [-1.2, -1.2, 0.8, 1.25]),
        ("cispo", [0.8664340, 0.1896490, -0.4605170, -2.8782314]),
        ("gspo", [-1.0004, -1.0004, 0.9997, 0.9997]),
        ("dro", [0.6956368, 0.1226353, -2.1730706, -2.3000953]),
        ("importance_sampling", [-1.25, -1.8, 0.2, 1.25]),
        ("cross_entropy", [0.6931472, 0.1053605, -2.3025851, -2.3025851]),
    ],
)
def test_values_are_those_worked_by_hand(name, expected):
    torch.testing.assert_close(terms(name).loss_N, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # -A r + 2e-3 log r, without the first term where the token was dropped
        ("masked_is", [-1.2495537, 0.0011756, -0.0032189, 1.2504463]),
        ("ppo", [0, 0, 0, 1.25]),
        ("cispo", [-1.25, -1.8, 0.2, 1.25]),
        ("gspo", [0, 0, 0, 0]),
        ("dro", [-0.9776856, -0.9412213, 0.8390562, 1.0223144]),  # -A + 0.1 log r
        ("importance_sampling", [-1.25, -1.8, 0.2, 1.25]),
        ("cross_entropy", [-1, -1, 1, 1]),
    ],
)
def test_gradients_with_respect_to_logprobs_are_those_of_the_formula(name, expected):
    given = inputs()
    loss_fn(name)(given, LossConfig(loss=name)).loss_N.sum().backward()
    torch.testing.assert_close(given.logprobs_N.grad, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", sorted(set(names_of("loss")) - {"cispo"}))
def test_gradients_are_the_finite_differences_of_the_loss(name):
    def loss(logprobs):
        given = LossInputs(logprobs, Q.log(), A, torch.tensor([4, 4, 9, 9]))
        return loss_fn(name)(given, LossConfig(loss=name)).loss_N

    assert torch.autograd.gradcheck(loss, P.log().requires_grad_())


def test_cispos_gradient_is_the_finite_difference_with_its_weight_held():
    weight = (P / Q).clamp(max=1.2)
    given = inputs()
    config = LossConfig(loss="cispo", eps_high=0.2)
    (found,) = torch.autograd.grad(loss_fn("cispo")(given, config).loss_N.sum(), given.logprobs_N)
    step = 1e-6
    held = [-(weight * A * (P.log() + sign * step)) for sign in (1, -1)]
    torch.testing.assert_close(found, (held[0] - held[1]) / (2 * step), atol=1e-8, rtol=1e-6)


def test_gspo_spreads_a_sequences_ratio_over_its_tokens():
    p, q = torch.tensor([0.5, 0.5, 0.2, 0.2], dtype=torch.float64), torch.tensor([0.5, 0.4, 0.2, 0.2]).double()
    given = inputs(p, q)
    loss_fn("gspo")(given, LossConfig(loss="gspo", eps_low=0.2, eps_high=0.2)).loss_N.sum().backward()
    s = 1.25**0.5  # inside the bounds: each of two tokens gets -A s (1/2 + 1/2)
    torch.testing.assert_close(given.logprobs_N.grad, torch.tensor([-s, -s, 1, 1], dtype=torch.float64))


@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_on_policy_every_loss_has_the_policy_gradient(name):
    given = inputs(P, P.clone())
    loss_fn(name)(given, LossConfig(loss=name)).loss_N.sum().backward()
    torch.testing.assert_close(given.logprobs_N.grad, -A)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("masked_is", [False, True, True, False]),
        ("ppo", [True, True, True, False]),
        ("cispo", [False, False, False, False]),
        ("gspo", [True, True, True, True]),
    ],
)
def test_tokens_that_were_dropped_or_cut_are_counted(name, expected):
    assert terms(name).clipped_N.tolist() == expected


def test_cispo_has_no_lower_bound_and_bounds_a_weight_by_five():
    p, q = torch.tensor([1e-3, 0.9, 0.9, 0.9]).double(), torch.tensor([0.9, 0.1, 0.9, 0.15]).double()
    given = inputs(p, q, torch.ones(4).double())
    loss_fn("cispo")(given, LossConfig(loss="cispo")).loss_N.sum().backward()
    torch.testing.assert_close(given.logprobs_N.grad, -torch.tensor([1e-3 / 0.9, 5, 1, 5]).double())


def test_gspo_clips_a_sequence_that_moved_by_a_thousandth():
    moved = inputs(Q * 1.001, Q)
    assert loss_fn("gspo")(moved, LossConfig(loss="gspo")).clipped_N.tolist() == [True, True, False, False]
    assert not loss_fn("ppo")(moved, LossConfig(loss="ppo")).clipped_N.any()


def test_the_bounds_of_a_loss_are_written_into_the_config_and_those_given_stay():
    bounds = {name: (LossConfig(loss=name).eps_low, LossConfig(loss=name).eps_high) for name in names_of("loss")}
    clipped = {"ppo": (0.2, 0.2), "clip_cov": (0.2, 0.2), "grpo": (0.2, 0.2), "gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0)}
    assert bounds == {name: clipped.get(name, (None, None)) for name in names_of("loss")}
    given = LossConfig(loss="gspo", eps_low=0.2)
    assert given.ratio_bounds == (0.8, 1 + 4e-4)
    assert LossConfig(**given.model_dump()) == given
    with pytest.raises(ValueError, match="eps_low would have no effect: loss = masked_is does not use it"):
        LossConfig(eps_low=0.3)


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("masked_is", {"mask_threshold": 0.5}),
        ("masked_is", {"mask_penalty": 0.5}),
        ("ppo", {"eps_low": 0.1}),
        ("ppo", {"eps_high": 0.1}),
        ("cispo", {"eps_low": 0.1}),
        ("cispo", {"eps_high": 0.1}),
        ("gspo", {"eps_low": 0.1}),
        ("gspo", {"eps_high": 0.1}),
        ("dro", {"dro_beta": 1.0}),
    ],
)
def test_every_constant_changes_the_loss_it_belongs_to(name, constants):
    assert not torch.equal(terms(name).loss_N, terms(name, **constants).loss_N)


def test_a_constant_that_the_loss_does_not_use_is_refused():
    from whet.config import validate

    data = {"name": "x", "env": [{"id": "e"}], "algorithm": {"loss": "ppo", "dro_beta": 0.3}}
    with pytest.raises(ConfigError, match="dro_beta would have no effect: loss = ppo does not use it"):
        validate(RunConfig, data, "run.toml")


def test_a_dropped_token_with_an_infinite_ratio_stays_harmless():
    given = LossInputs(
        torch.tensor([0.0], requires_grad=True), torch.tensor([-1e4]), torch.tensor([1.0]), torch.zeros(1)
    )
    found = loss_fn("masked_is")(given, LossConfig(mask_penalty=0))
    found.loss_N.sum().backward()
    assert found.clipped_N.tolist() == [True]
    assert found.loss_N.item() == 0
    assert given.logprobs_N.grad.item() == 0


OVERFLOW = 120.0  # exp of it is infinite in float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_a_token_that_carries_no_loss_has_gradient_zero_where_its_ratio_overflows(name, dtype):
    beyond = OVERFLOW if dtype == torch.float32 else 10 * OVERFLOW
    clips = name in ("ppo", "clip_cov", "grpo", "gspo", "masked_is")
    advantages = torch.tensor([1.0 if clips else 0.0, 0.0, -1.0, 1.0], dtype=dtype)
    logprobs = torch.tensor([-0.1, -0.1, -0.5, -0.5], dtype=dtype, requires_grad=True)
    sampled = logprobs.detach() - torch.tensor([beyond, beyond, 0, 0], dtype=dtype)
    config = LossConfig(loss=name, **{"masked_is": {"mask_penalty": 0}, "dro": {"dro_beta": 0}}.get(name, {}))
    terms = loss_fn(name)(LossInputs(logprobs, sampled, advantages, torch.arange(4)), config)
    terms.loss_N.sum().backward()
    assert terms.loss_N.isfinite().all()
    torch.testing.assert_close(logprobs.grad, torch.tensor([0, 0, 1, -1], dtype=dtype))


@pytest.mark.parametrize("name", ["ppo", "gspo", "importance_sampling"])
def test_a_token_that_carries_loss_is_not_finite_where_its_ratio_overflows(name):
    """The learner then names the rollout; a bounded weight would hide it."""
    logprobs = torch.tensor([-0.1], requires_grad=True)
    given = LossInputs(logprobs, logprobs.detach() - OVERFLOW, torch.tensor([-1.0]), torch.zeros(1, dtype=torch.long))
    assert loss_fn(name)(given, LossConfig(loss=name)).loss_N.item() == float("inf")


def squared(given, config):
    """A loss of one's own, for the tests below."""
    return LossTerms(config.loss_args["weight"] * given.log_ratio_N.square())


def test_a_loss_of_ones_own_is_found_by_import_path_and_given_its_constants(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_losses", sys.modules[__name__])
    config = LossConfig(loss="my_losses:squared", loss_args={"weight": 2.0})
    found = loss_fn(config.loss)(inputs(), config)
    torch.testing.assert_close(found.loss_N, 2 * (P / Q).log().square())


def test_a_loss_of_ones_own_that_returns_something_else_is_told_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_losses", sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__], "squared", lambda given, config: given.log_ratio_N.sum())
    with pytest.raises(TrainingError, match=r"one value for each of the 4 tokens; it returned .*Tensor"):
        loss_fn("my_losses:squared")(inputs(), LossConfig(loss="my_losses:squared"))


def test_a_loss_that_cannot_be_found_names_what_is_near():
    with pytest.raises(ConfigError, match="Did you mean 'sigmoid'"):
        loss_fn("torch:sigmoi")
    with pytest.raises(ValidationError, match=r"there is no loss 'cipso'\. Did you mean 'cispo'\?"):
        LossConfig(loss="cipso")
