"""The KL to a reference: p = .5 .2, f = .25 .4, so log(p / f) = ln 2, -ln 2."""

import math

import pytest
import torch

from whet.rl.losses.regularisers import kl_to_reference

P = torch.tensor([0.5, 0.2], dtype=torch.float64)
F = torch.tensor([0.25, 0.4], dtype=torch.float64)
LN2 = math.log(2)


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
